// SPDX-License-Identifier: Apache-2.0
// JSON's way in and out. nlohmann's parser and serializer are instantiated in json.cc and in
// few others: in each file that calls them they are most of its compile time.
#pragma once
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace telltale {

/// is_discarded() where `text` is no JSON. Who tells a user where it is none calls nlohmann's own
/// parse, which throws with the place.
nlohmann::json ParseJson(std::string_view text);
/// The same with the members of objects in the text's order.
nlohmann::ordered_json ParseOrderedJson(std::string_view text);

/// In one line, as UTF-8: bytes that are none become U+FFFD. Never throws.
std::string JsonText(const nlohmann::json& json);
std::string JsonText(const nlohmann::ordered_json& json);

/// What a caught exception says, where it is nlohmann's without the library's tag: "parse error at
/// line 1, column 3: ...".
std::string JsonTrouble(const std::exception& error);

}  // namespace telltale
