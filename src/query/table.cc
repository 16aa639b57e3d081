// SPDX-License-Identifier: Apache-2.0
#include "query/table.h"

#include <fmt/core.h>

#include <type_traits>

namespace telltale::query {
namespace {

template <class Field>
Value ValueOf(const Field& field) {
  if constexpr (std::is_same_v<Field, std::int32_t>) {
    return std::int64_t{field};
  } else if constexpr (std::is_same_v<Field, std::uint32_t>) {
    return std::uint64_t{field};
  } else {
    return field;
  }
}

}  // namespace

Table::Table(format::TableId id) : id_(id) {
  columns_.push_back(
      {"writer", format::ColumnType::kStr, [](const RowRef& row) { return Value(row.writer); }});
  const format::Rows types;
  format::ForEachTable(types, [&](const auto& of_table) {
    using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
    if (Row::kTable != id) return;
    format::ForEachColumn<Row>([&](const format::ColumnDesc& desc, auto member) {
      columns_.push_back({desc.name, desc.type, [member](const RowRef& row) {
                            return ValueOf(static_cast<const Row*>(row.row)->*member);
                          }});
    });
  });
}

Result<Table> Table::Named(std::string_view name) {
  std::string known;
  for (const format::TableDesc& table : format::kTables) {
    if (table.name == name) return Table(table.id);
    known += (known.empty() ? "" : ", ") + std::string(table.name);
  }
  return {Code::kUsage, fmt::format("no table '{}': choose one of {}", name, known)};
}

const Column* Table::Find(std::string_view name) const {
  for (const Column& column : columns_) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

std::string Table::ColumnNames() const {
  std::string names;
  for (const Column& column : columns_) {
    names += (names.empty() ? "" : ", ") + std::string(column.name);
  }
  return names;
}

}  // namespace telltale::query
