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

/// Takes the next field from `line`; empty at its end. Fields are short: the library's searches
/// would call a function for each of their characters.
inline std::string_view NextField(std::string_view* line) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  std::size_t begin = 0;
  while (begin < line->size() && blank((*line)[begin])) ++begin;
  std::size_t end = begin;
  while (end < line->size() && !blank((*line)[end])) ++end;
  const std::string_view field = line->substr(begin, end - begin);
  line->remove_prefix(end);
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
