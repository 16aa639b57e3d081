// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/utf8.h"

namespace telltale {
namespace {

/// The code point of a character that a terminal obeys.
std::optional<std::uint32_t> Obeyed(std::string_view character) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return static_cast<std::uint8_t>(character[i]);
  };
  std::uint32_t code = 0;
  if (character.size() == 1) code = byte(0);
  if (character.size() == 2) code = (byte(0) & 0x1fU) << 6U | (byte(1) & 0x3fU);
  if (character.size() == 3) {
    code = (byte(0) & 0x0fU) << 12U | (byte(1) & 0x3fU) << 6U | (byte(2) & 0x3fU);
  }
  const auto within = [&](std::uint32_t first, std::uint32_t last) {
    return code >= first && code <= last;
  };
  // Of the marks: line separators, embeddings and overrides, isolates.
  const bool obeyed = character.size() < 4 && (within(0, 0x1f) || within(0x7f, 0x9f) ||
                                               within(0x2028, 0x202e) || within(0x2066, 0x2069));
  return obeyed ? std::optional(code) : std::nullopt;
}

/// Each character that is obeyed goes to `replace`, with what follows it; the result is what stands
/// in its place, and none keeps it.
template <class Replace>
std::string Rewrite(std::string_view text, Replace replace) {
  std::string scratch;
  text = ToValidUtf8(text, &scratch);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view character = text.substr(0, Utf8Length(text));
    text.remove_prefix(character.size());
    const auto code = Obeyed(character);
    const std::optional<std::string> instead = code ? replace(*code, text) : std::nullopt;
    out += instead ? std::string_view(*instead) : character;
  }
  return out;
}

std::string Escaped(std::uint32_t code) {
  if (code == '\n') return "\\n";
  return code > 0xff ? fmt::format("\\u{:04x}", code) : fmt::format("\\x{:02x}", code);
}

}  // namespace

std::string Printable(std::string_view text) {
  return Rewrite(text, [](std::uint32_t code, std::string_view) -> std::optional<std::string> {
    return Escaped(code);
  });
}

std::string PrintableLines(std::string_view text) {
  return Rewrite(text, [](std::uint32_t code, std::string_view rest) -> std::optional<std::string> {
    // A carriage return alone would go back over what was written.
    if (code == '\n' || code == '\t' || (code == '\r' && rest.starts_with('\n'))) return {};
    return Escaped(code);
  });
}

std::string PrintableJson(std::string_view json) {
  // JSON allows a line break outside of its texts alone, and no other of those below 0x20 inside.
  return Rewrite(json, [](std::uint32_t code, std::string_view) -> std::optional<std::string> {
    if (code == '\n') return {};
    return fmt::format("\\u{:04x}", code);
  });
}

std::string WithoutControls(std::string_view text) {
  return Rewrite(text, [](std::uint32_t code, std::string_view) -> std::optional<std::string> {
    if (code == '\n' || code == '\t') return {};
    return "\xef\xbf\xbd";
  });
}

}  // namespace telltale
