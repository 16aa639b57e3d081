// SPDX-License-Identifier: Apache-2.0
// Rows of any table by column: what an expression or a printer needs, without knowing the row's
// type.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"

namespace telltale::query {

using Value = std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view>;

/// One row and the writer it is from.
struct RowRef {
  std::string_view writer;
  const void* row = nullptr;
};

struct Column {
  std::string_view name;
  format::ColumnType type{};
  std::function<Value(const RowRef&)> get;  ///< Strings live as long as the row.
};

/// The columns of one table, `writer` first, then as the record schema has them.
class Table {
 public:
  explicit Table(format::TableId id);
  /// Code::kUsage names the tables there are.
  static Result<Table> Named(std::string_view name);

  format::TableId id() const { return id_; }
  const std::vector<Column>& columns() const { return columns_; }
  const Column* Find(std::string_view name) const;
  /// "writer, seq, ord_ns, ..." for messages.
  std::string ColumnNames() const;

 private:
  format::TableId id_;
  std::vector<Column> columns_;
};

/// Calls f with each row of `rows` that is of `table`; stops when it returns false.
template <class F>
bool ForEachRow(const format::Rows& rows, format::TableId table, std::string_view writer, F&& f) {
  bool go_on = true;
  format::ForEachTable(rows, [&](const auto& of_table) {
    using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
    if (Row::kTable != table) return;
    for (const Row& row : of_table) {
      if (!go_on) return;
      go_on = f(RowRef{writer, &row});
    }
  });
  return go_on;
}

}  // namespace telltale::query
