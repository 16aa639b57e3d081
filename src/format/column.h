// SPDX-License-Identifier: Apache-2.0
// Descriptors of columns and tables; the generated records.gen.h fills them.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace telltale::format {

/// Wire codes, permanent (docs/formats/journal.md).
enum class ColumnType : std::uint8_t {
  kI32 = 1,
  kI64 = 2,
  kU32 = 3,
  kU64 = 4,
  kF64 = 5,
  kBool = 6,
  kStr = 7,
};

/// Values from `least` to `most`, both included.
struct Bound {
  std::int64_t least;
  std::int64_t most;
  template <class Integer>
  constexpr bool Has(Integer value) const {
    return std::cmp_greater_equal(value, least) && std::cmp_less_equal(value, most);
  }
};

struct ColumnDesc {
  std::uint8_t id;  ///< Permanent within its table.
  ColumnType type;
  std::string_view name;
  std::string_view unit;
  std::string_view doc;
  /// Smallest and largest value of a column of integers (format/bounds.h).
  std::int64_t least;
  std::int64_t most;
};

enum class TableId : std::uint8_t;

struct TableDesc {
  TableId id;
  std::string_view name;
  std::string_view doc;
  std::span<const ColumnDesc> columns;
};

}  // namespace telltale::format
