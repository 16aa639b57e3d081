// SPDX-License-Identifier: Apache-2.0
#include "interchange/json_scan.h"

#include <cmath>

namespace telltale::interchange {
namespace {

/// Decimal digits that fit into 64 bits whatever they are.
constexpr int kSafeDigits = 18;

void AppendCodePoint(std::uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xC0 | (code >> 6));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *out += static_cast<char>(0xE0 | (code >> 12));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | (code >> 18));
    *out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// The four hexadecimal digits at `at`, nothing where they are not there.
std::optional<std::uint32_t> Hex4(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
  if (error != std::errc() || end != text.data() + at + 4) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> JsonValue::Number() const {
  if (kind != Kind::kNumber && kind != Kind::kString) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> JsonValue::Integer() const {
  if (kind != Kind::kNumber && kind != Kind::kString) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return Scaled(0);
}

/// Of so few digits that nothing overflows; nothing where it is no such number.
std::optional<std::int64_t> JsonValue::ShortScaled(int digits) const {
  const char* at = text.data();
  const char* const end = at + text.size();
  std::int64_t value = 0;
  const char* const begin = at;
  for (; at != end && *at >= '0' && *at <= '9' && at - begin < kSafeDigits - digits; ++at) {
    value = value * 10 + (*at - '0');
  }
  if (at == begin || at - begin > kSafeDigits - digits) return std::nullopt;
  int left = digits;
  if (at != end && *at == '.') {
    for (++at; at != end && *at >= '0' && *at <= '9'; ++at) {
      if (left == 0) continue;
      value = value * 10 + (*at - '0');
      --left;
    }
  }
  if (at != end) return std::nullopt;
  for (; left > 0; --left) value *= 10;
  return value;
}

std::optional<std::int64_t> JsonValue::Scaled(int digits) const {
  if (const auto value = ShortScaled(digits)) return value;
  const char* at = text.data();
  const char* const end = at + text.size();
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  std::int64_t value = 0;
  int behind = -1;  // Digits behind the point.
  bool plain = at != end;
  for (; at != end && plain; ++at) {
    if (*at == '.') {
      plain = behind < 0;
      behind = 0;
    } else if (*at < '0' || *at > '9') {
      plain = false;
    } else if (behind < digits) {
      plain = !__builtin_mul_overflow(value, std::int64_t{10}, &value) &&
              !__builtin_add_overflow(value, std::int64_t{*at - '0'}, &value);
      if (behind >= 0) ++behind;
    }
  }
  for (int i = behind < 0 ? 0 : behind; i < digits && plain; ++i) {
    plain = !__builtin_mul_overflow(value, std::int64_t{10}, &value);
  }
  if (plain) return negative ? -value : value;
  const auto number = Number();
  if (!number) return std::nullopt;
  const double scaled = *number * std::pow(10.0, digits);
  constexpr double kMost = 9.2e18;
  if (!(std::abs(scaled) < kMost)) return std::nullopt;
  return static_cast<std::int64_t>(scaled);
}

std::string_view JsonUnescape(const JsonValue& value, std::string* scratch) {
  if (!value.escaped) return value.text;
  scratch->clear();
  const std::string_view text = value.text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      *scratch += text[i];
      continue;
    }
    switch (const char c = text[++i]) {
      case 'b':
        *scratch += '\b';
        break;
      case 'f':
        *scratch += '\f';
        break;
      case 'n':
        *scratch += '\n';
        break;
      case 'r':
        *scratch += '\r';
        break;
      case 't':
        *scratch += '\t';
        break;
      case 'u': {
        auto code = Hex4(text, i + 1);
        if (!code) break;
        i += 4;
        if (*code >= 0xD800 && *code < 0xDC00 && text.substr(i + 1, 2) == "\\u") {
          if (const auto low = Hex4(text, i + 3); low && *low >= 0xDC00 && *low < 0xE000) {
            code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
            i += 6;
          }
        }
        AppendCodePoint(*code, scratch);
        break;
      }
      default:
        *scratch += c;
    }
  }
  return *scratch;
}

}  // namespace telltale::interchange
