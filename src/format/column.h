// SPDX-License-Identifier: Apache-2.0
// Descriptors of columns and tables; the generated records.gen.h fills them.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

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

struct ColumnDesc {
  std::uint8_t id;  ///< Permanent within its table.
  ColumnType type;
  std::string_view name;
  std::string_view unit;
  std::string_view doc;
};

enum class TableId : std::uint8_t;

struct TableDesc {
  TableId id;
  std::string_view name;
  std::string_view doc;
  std::span<const ColumnDesc> columns;
};

}  // namespace telltale::format
