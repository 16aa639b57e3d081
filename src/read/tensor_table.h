// SPDX-License-Identifier: Apache-2.0
// The rows that one table has of one tensor, as an Arrow stream. Included only by .cc files that
// use Arrow.
#pragma once
#include <arrow/type_fwd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::read {

/// `table`: statistics, histograms or tensors. `columns` empty: all, `writer` first. The rows are
/// read here and now; other tensors' are not.
Result<std::shared_ptr<arrow::RecordBatchReader>> TensorTable(
    const std::filesystem::path& run, const std::string& table, const std::string& name,
    const std::vector<std::string>& columns, bool final, store::Salvage* salvage);

}  // namespace telltale::read
