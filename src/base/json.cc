// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include "base/json_depth.h"

namespace telltale {

nlohmann::json ParseJson(std::string_view text) {
  if (JsonTooDeep(text)) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, nullptr, false);
}

nlohmann::ordered_json ParseOrderedJson(std::string_view text) {
  if (JsonTooDeep(text)) return nlohmann::ordered_json(nlohmann::json::value_t::discarded);
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

std::string JsonText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string JsonTrouble(const std::exception& error) {
  std::string_view words = error.what();
  const std::size_t tag_ends = words.find("] ");
  if (words.starts_with("[json.exception.") && tag_ends != std::string_view::npos) {
    words.remove_prefix(tag_ends + 2);
  }
  return std::string(words);
}

}  // namespace telltale
