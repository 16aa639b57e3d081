// SPDX-License-Identifier: Apache-2.0
// Whole numbers out of an event's data (docs/formats/events.md). What stands there was written by
// whoever wrote the event: it is bounded where it enters, as the columns of a row are
// (format/bounds.h).
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "format/records.gen.h"

namespace telltale::format {

/// Of an exit code, a signal: what an int holds.
inline constexpr Bound kIntBound{std::numeric_limits<std::int32_t>::min(),
                                 std::numeric_limits<std::int32_t>::max()};

/// A member of `data`; nullopt where it is missing, no whole number, or out of the bound.
template <class Json>
std::optional<std::int64_t> EventNumber(const Json& data, const char* key, const Bound& bound) {
  if (!data.is_object()) return std::nullopt;
  const auto found = data.find(key);
  if (found == data.end() || !found->is_number_integer()) return std::nullopt;
  // What is not below zero is unsigned to the parser, and may have 64 bits.
  if (found->is_number_unsigned() &&
      !std::in_range<std::int64_t>(found->template get<std::uint64_t>())) {
    return std::nullopt;
  }
  const auto number = found->template get<std::int64_t>();
  return bound.Has(number) ? std::optional(number) : std::nullopt;
}

}  // namespace telltale::format
