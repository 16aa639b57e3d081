// SPDX-License-Identifier: Apache-2.0
// One table of a run as an Arrow stream, read as it is asked for: memory holds one piece.
#pragma once
#include <arrow/type_fwd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::read {

struct TableQuery {
  std::string table;
  std::vector<std::string> columns;  ///< Empty: all.
  std::string where;                 ///< Empty: all rows.
};

/// `final`: the run is over. `done` gets what had to be skipped, once, when the stream has ended.
Result<std::shared_ptr<arrow::RecordBatchReader>> OpenTable(
    const std::filesystem::path& run, const TableQuery& query, bool final,
    std::function<void(const store::Salvage&)> done);

}  // namespace telltale::read
