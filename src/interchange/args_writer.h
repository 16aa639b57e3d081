// SPDX-License-Identifier: Apache-2.0
// Puts together the JSON object of what a source said of a slice beyond the columns.
//
// Thread safety: none. Memory: one string, at most kMaxArgsBytes and kept for the next object.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace telltale::interchange {

inline constexpr std::size_t kMaxArgsBytes = 8192;
inline constexpr std::size_t kMaxArgTextBytes = 1024;

class ArgsWriter {
 public:
  void Clear() {
    text_.clear();
    finished_ = false;
  }

  void Add(std::string_view key, std::string_view value) {
    std::string_view shown = value.substr(0, kMaxArgTextBytes);
    if (!Begin(key, shown.size())) return;
    Quote(shown);
  }
  void Add(std::string_view key, const char* value) { Add(key, std::string_view(value)); }
  void Add(std::string_view key, bool value) { AddRaw(key, value ? "true" : "false"); }
  template <std::integral T>
  void Add(std::string_view key, T value) {
    if (Begin(key, kNumberBytes)) fmt::format_to(std::back_inserter(text_), "{}", value);
  }
  void Add(std::string_view key, double value) {
    // JSON has no word for the others.
    if (!std::isfinite(value)) return Add(key, fmt::format("{}", value));
    if (Begin(key, kNumberBytes)) fmt::format_to(std::back_inserter(text_), "{}", value);
  }
  /// REQUIRES: `json` is valid JSON.
  void AddRaw(std::string_view key, std::string_view json) {
    if (Begin(key, json.size())) text_ += json;
  }

  /// The object; empty where nothing was added. Valid until Clear, after which the next begins.
  std::string_view Finish() {
    if (!text_.empty() && !finished_) {
      text_ += '}';
      finished_ = true;
    }
    return text_;
  }

 private:
  static constexpr std::size_t kNumberBytes = 32;

  /// False where the object is full: what follows is left out.
  bool Begin(std::string_view key, std::size_t bytes) {
    key = key.substr(0, kMaxArgTextBytes);
    if (text_.size() + key.size() + bytes + 8 > kMaxArgsBytes) return false;
    text_ += text_.empty() ? '{' : ',';
    Quote(key);
    text_ += ':';
    return true;
  }

  void Quote(std::string_view text) {
    const std::string_view valid = ToValidUtf8(text, &scratch_);
    text_ += '"';
    for (const char c : valid) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", static_cast<unsigned>(c));
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  std::string scratch_;
  bool finished_ = false;
};

}  // namespace telltale::interchange
