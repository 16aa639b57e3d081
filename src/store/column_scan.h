// SPDX-License-Identifier: Apache-2.0
// A few columns of one table of a run, sealed and journalled, each row once: what it takes to find
// one tensor among many. Row groups that cannot hold the name or the steps are not read, a column
// that is constant by its statistics is not decoded.
//
// Thread safety: none; a call stands alone. Memory: one row group of the columns asked for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::store {

/// Steps from `first` to `last`, both included.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool Has(std::int64_t step) const { return step >= first && step <= last; }
};

struct ScanRequest {
  format::TableId table{};
  std::vector<std::string> columns;
  /// Only rows whose column `name` is this; the table then has such a column.
  std::optional<std::string> name;
  /// Only rows whose text in this column is not empty.
  std::optional<std::string> not_empty;
  /// Only rows whose column `step` is among these; the table then has such a column.
  std::optional<StepRange> steps;
  /// Only rows whose column `file` is this; the table then has such a column.
  std::optional<std::string> file;
  bool final = false;  ///< The run is over: what a journal ends with is damage.
};

/// Values of one column; which member holds them follows from the column's type. A constant column
/// may have one value for all rows.
struct ScanColumn {
  std::vector<std::int64_t> ints;       ///< i32, i64, u32, bool; u64 as its bits.
  std::vector<double> reals;            ///< f64.
  std::vector<std::uint32_t> codes;     ///< str: indices into `texts`...
  std::vector<std::string_view> texts;  ///< ...in which a text may stand twice.
  bool constant = false;

  std::int64_t Int(std::size_t row) const { return ints[constant ? 0 : row]; }
  double Real(std::size_t row) const { return reals[constant ? 0 : row]; }
  std::uint32_t Code(std::size_t row) const { return codes[constant ? 0 : row]; }
  std::string_view Text(std::size_t row) const { return texts[Code(row)]; }
};

/// Valid during the call of the visitor, which may move numbers out of it.
struct ScanPiece {
  std::string_view writer;
  std::size_t rows = 0;             ///< Above zero.
  std::vector<ScanColumn> columns;  ///< As asked for, in that order.
};
using ScanVisitor = std::function<Status(ScanPiece&)>;

/// Calls `visit` with the rows by (writer, seq), as far as segments and journals are in that order.
/// What the visitor fails with ends the scan. Otherwise fails only with kUsage (no such column),
/// kVersion or kIo; damage is counted in `salvage`.
Status ScanColumns(const std::filesystem::path& run, const ScanRequest& request,
                   const ScanVisitor& visit, Salvage* salvage);

/// The same of one writer's folder.
Status ScanWriterColumns(const std::filesystem::path& folder, const ScanRequest& request,
                         const ScanVisitor& visit, Salvage* salvage);

/// Type of a column; nothing where the table has none of that name.
std::optional<format::ColumnType> TypeOfColumn(format::TableId table, std::string_view name);

}  // namespace telltale::store
