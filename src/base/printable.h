// SPDX-License-Identifier: Apache-2.0
// Names and messages come from the user's program and may hold anything. A terminal obeys some of
// it: control characters (C0, DEL, C1), and marks that turn the direction of writing.
#pragma once
#include <string>
#include <string_view>

namespace telltale {

/// One line that a terminal only shows: what it would obey stands as \x1b, \n or \u202e; a byte
/// that is no UTF-8 is U+FFFD.
std::string Printable(std::string_view text);

/// The same for text of many lines: line breaks and tabs stay.
std::string PrintableLines(std::string_view text);

/// JSON of the same meaning, its line breaks kept, in which what a terminal would obey is written
/// as an escape. `json` is valid JSON.
std::string PrintableJson(std::string_view json);

/// For a page: what a terminal would obey is U+FFFD; line breaks and tabs stay.
std::string WithoutControls(std::string_view text);

}  // namespace telltale
