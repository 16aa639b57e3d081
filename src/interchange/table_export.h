// SPDX-License-Identifier: Apache-2.0
// One table of a run as one Parquet file or as CSV. docs/guide/export.md.
//
// Memory: one row group of 64 Ki rows; the rows are written as they are read.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "interchange/export_file.h"
#include "store/reader.h"

namespace telltale::interchange {

struct TableExportReport {
  std::uint64_t rows = 0;
  store::Salvage salvage;
};

/// The columns are `writer` and those of docs/formats/records.md. Code::kUsage: no such table.
Result<TableExportReport> ExportParquet(const std::filesystem::path& run, const std::string& table,
                                        const std::filesystem::path& path);
/// As `telltale query` prints it.
Result<TableExportReport> ExportCsv(const std::filesystem::path& run, const std::string& table,
                                    ExportFile* file);

}  // namespace telltale::interchange
