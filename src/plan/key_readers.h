// SPDX-License-Identifier: Apache-2.0
// Reading the keys of a plan's tree, for the files of this folder that do: each says of a wrong one
// what to write. Thread safety: stateless. May throw what nlohmann::json does .
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace telltale::plan {

/// What is wrong with a plan: "collections.weights.interval" "is not a number ...".
struct KeyError {
  std::string key;  ///< Empty: the whole.
  std::string what;
};
using Check = std::optional<KeyError>;

inline constexpr std::size_t kMaxListItems = 4096;

inline bool IsOneOf(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

inline std::string JoinWords(std::span<const std::string_view> words) {
  std::string out;
  for (const std::string_view word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

inline KeyError Wrong(std::string key, std::string what) {
  return {std::move(key), std::move(what)};
}

template <class Number>
Check ReadNumber(const nlohmann::ordered_json& in, const std::string& key, Number* out,
                 std::uint64_t most, std::string_view example) {
  if (!in.is_number_integer() || (!in.is_number_unsigned() && in.get<std::int64_t>() < 0) ||
      in.get<std::uint64_t>() > most) {
    return Wrong(key, fmt::format("is not a number from 0 to {}: write {}", most, example));
  }
  *out = static_cast<Number>(in.get<std::uint64_t>());
  return {};
}

inline Check ReadTexts(const nlohmann::ordered_json& in, const std::string& key,
                       std::vector<std::string>* out) {
  out->clear();
  if (in.is_string()) {
    out->push_back(in.get<std::string>());
    return {};
  }
  const auto text = [](const nlohmann::ordered_json& item) { return item.is_string(); };
  if (!in.is_array() || in.size() > kMaxListItems || !std::all_of(in.begin(), in.end(), text)) {
    return Wrong(key, fmt::format("is not a list of at most {} texts: write for example [\"fc\"]",
                                  kMaxListItems));
  }
  *out = in.get<std::vector<std::string>>();
  return {};
}

}  // namespace telltale::plan
