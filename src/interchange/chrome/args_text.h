// SPDX-License-Identifier: Apache-2.0
// Values of an event's arguments as JSON that every reader takes: what writers of traces put there
// and is none becomes a text.
//
// Thread safety: stateless. Time and memory: in proportion to the text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace telltale::interchange {

/// What became of what is no JSON.
struct ArgsFaults {
  std::uint64_t not_finite = 0;  ///< Words, and numbers beyond a double: texts of 64 bytes at most.
  std::uint64_t replaced = 0;    ///< Backslashes that escape nothing: doubled.
  std::uint64_t cut = 0;         ///< Values that nest too deep, or are no JSON otherwise: null.
};

/// Appends the value. `text` may be anything; of what is a value already nothing is changed but
/// blanks around it.
void AppendArgsValue(std::string_view text, std::string* out, ArgsFaults* faults);

/// Appends what stands between the quotes of a JSON string, without them. `text` holds no quote
/// that no backslash stands before.
void AppendArgsKey(std::string_view text, std::string* out, ArgsFaults* faults);

}  // namespace telltale::interchange
