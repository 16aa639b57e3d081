// SPDX-License-Identifier: Apache-2.0
// Reading the kernel's text files: lines and blank-separated fields, without copies.
#pragma once
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace telltale::collect {

/// Takes the next line from `text`; false at its end.
inline bool NextLine(std::string_view* text, std::string_view* line) {
  if (text->empty()) return false;
  const std::size_t end = text->find('\n');
  *line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return true;
}

/// Takes the next field from `line`; empty at its end.
inline std::string_view NextField(std::string_view* line) {
  const std::size_t begin = line->find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    *line = {};
    return {};
  }
  line->remove_prefix(begin);
  const std::size_t end = line->find_first_of(" \t");
  const std::string_view field = line->substr(0, end);
  line->remove_prefix(field.size());
  return field;
}

template <class T>
std::optional<T> ParseNumber(std::string_view field) {
  T value{};
  const char* end = field.data() + field.size();
  const auto [at, error] = std::from_chars(field.data(), end, value);
  if (field.empty() || error != std::errc{} || at != end) return std::nullopt;
  return value;
}

/// Reads up to `n` decimal fields of `line` into `out`; gives how many there were.
template <class T>
std::size_t ReadNumbers(std::string_view line, T* out, std::size_t n) {
  std::size_t count = 0;
  for (; count < n; ++count) {
    const auto value = ParseNumber<T>(NextField(&line));
    if (!value) break;
    out[count] = *value;
  }
  return count;
}

}  // namespace telltale::collect
