// SPDX-License-Identifier: Apache-2.0
#include "query/query.h"

#include <fmt/core.h>

#include <memory>

#include "query/expression.h"
#include "query/printer.h"
#include "query/table.h"

namespace telltale::query {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;

Result<std::vector<const Column*>> Choose(const Table& table,
                                          const std::vector<std::string>& names) {
  std::vector<const Column*> columns;
  if (names.empty()) {
    for (const Column& column : table.columns()) columns.push_back(&column);
  }
  for (const std::string& name : names) {
    const Column* const column = table.Find(name);
    if (column == nullptr) {
      return {Code::kUsage,
              fmt::format("no column '{}': choose among {}", name, table.ColumnNames())};
    }
    columns.push_back(column);
  }
  return columns;
}

}  // namespace

Status RunQuery(const std::filesystem::path& run, const Query& query, const Sink& sink,
                store::Salvage* salvage) {
  TELLTALE_ASSIGN_OR_RETURN(const Table table, Table::Named(query.table));
  TELLTALE_ASSIGN_OR_RETURN(std::vector<const Column*> columns, Choose(table, query.columns));
  std::unique_ptr<Expression> where;
  if (!query.where.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(where, Expression::Parse(query.where, table));
  }
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  const auto printer = query.format == Format::kCsv ? NewCsvPrinter(std::move(columns))
                                                    : NewJsonPrinter(std::move(columns));
  std::string piece;
  bool wanted = true;
  const auto flush = [&](std::size_t least) {
    if (piece.size() < least || piece.empty()) return wanted;
    wanted = wanted && sink(piece);
    piece.clear();
    return wanted;
  };
  std::uint64_t left = query.limit.value_or(~0ULL);
  printer->Begin(&piece);
  TELLTALE_RETURN_IF_ERROR(reader->Scan(
      store::MaskOf(table.id()),
      [&](const std::string& writer, const format::Rows& rows) {
        return ForEachRow(rows, table.id(), writer, [&](const RowRef& row) {
          if (left == 0) return false;
          if (where != nullptr && !where->Matches(row)) return true;
          printer->Row(row, &piece);
          --left;
          return flush(kPieceBytes);
        });
      },
      salvage));
  printer->End(&piece);
  flush(0);
  return {};
}

}  // namespace telltale::query
