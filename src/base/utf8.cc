// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace telltale {

std::size_t Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  std::uint8_t second_low = 0x80;
  std::uint8_t second_high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) second_low = 0xa0;   // Overlong.
    if (lead == 0xed) second_high = 0x9f;  // Surrogates.
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) second_low = 0x90;   // Overlong.
    if (lead == 0xf4) second_high = 0x8f;  // Beyond U+10FFFF.
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < second_low || byte(1) > second_high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::size_t ValidUtf8Prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    // Eight characters of ASCII at once.
    if (std::uint64_t bytes = 0; text.size() - at >= sizeof bytes) {
      std::memcpy(&bytes, text.data() + at, sizeof bytes);
      if ((bytes & 0x8080808080808080U) == 0) {
        at += sizeof bytes;
        continue;
      }
    }
    const std::size_t n = Utf8Length(text.substr(at));
    if (n == 0) break;
    at += n;
  }
  return at;
}

std::string_view ToValidUtf8(std::string_view text, std::string* scratch) {
  std::size_t good = ValidUtf8Prefix(text);
  if (good == text.size()) return text;
  scratch->clear();
  while (true) {
    scratch->append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) return *scratch;
    scratch->append("\xef\xbf\xbd");
    text.remove_prefix(1);
    good = ValidUtf8Prefix(text);
  }
}

}  // namespace telltale
