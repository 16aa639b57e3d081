// SPDX-License-Identifier: Apache-2.0
// Whether a row's numbers lie within the bounds that records.toml gives its columns. What comes
// from a ring, a journal, a segment or an import is foreign: it is asked once, where it enters, so
// that nothing behind overflows on it.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "format/records.gen.h"

namespace telltale::format {

template <class Value>
inline constexpr bool kIsBounded = std::is_integral_v<Value> && !std::is_same_v<Value, bool>;

/// Of a watermark, which is the smallest number there is before anything was written.
constexpr bool IsWatermark(std::int64_t ns) {
  return ns == std::numeric_limits<std::int64_t>::min() || kTimeBound.Has(ns);
}

template <class Row>
bool InBounds(const Row& row) {
  bool in = true;
  ForEachColumn<Row>([&](const ColumnDesc& desc, auto member) {
    using Value = std::remove_cvref_t<decltype(row.*member)>;
    if constexpr (kIsBounded<Value>) {
      // All of them, without a jump: most rows are in.
      in = static_cast<bool>(static_cast<int>(in) &
                             static_cast<int>(std::cmp_greater_equal(row.*member, desc.least)) &
                             static_cast<int>(std::cmp_less_equal(row.*member, desc.most)));
    }
  });
  return in;
}

/// Brings numbers that are out of bounds to the nearest that are in; how many there were.
template <class Row>
std::uint64_t ClampToBounds(Row* row) {
  if (InBounds(*row)) return 0;
  std::uint64_t count = 0;
  ForEachColumn<Row>([&](const ColumnDesc& desc, auto member) {
    using Value = std::remove_cvref_t<decltype(row->*member)>;
    if constexpr (kIsBounded<Value>) {
      if (std::cmp_less(row->*member, desc.least)) {
        row->*member = static_cast<Value>(desc.least);
        ++count;
      } else if (std::cmp_greater(row->*member, desc.most)) {
        row->*member = static_cast<Value>(desc.most);
        ++count;
      }
    }
  });
  return count;
}

/// Calls f(descriptor, value) for the columns of a row that are out of bounds.
template <class Row, class F>
void ForEachOutOfBounds(const Row& row, F&& f) {
  ForEachColumn<Row>([&](const ColumnDesc& desc, auto member) {
    using Value = std::remove_cvref_t<decltype(row.*member)>;
    if constexpr (kIsBounded<Value>) {
      if (std::cmp_less(row.*member, desc.least) || std::cmp_greater(row.*member, desc.most)) {
        f(desc, row.*member);
      }
    }
  });
}

}  // namespace telltale::format
