// SPDX-License-Identifier: Apache-2.0
// Rows of ours to Arrow and back, by the record schema. Included only by .cc files that use Arrow.
#pragma once
#include <arrow/type_fwd.h>

#include <memory>

#include "base/string_pool.h"
#include "format/records.gen.h"

namespace telltale::store {

/// Columns in the schema's order; none is nullable.
std::shared_ptr<arrow::Schema> ArrowSchemaOf(format::TableId table);

arrow::Result<std::shared_ptr<arrow::RecordBatch>> RowsToArrow(const format::Rows& rows,
                                                               format::TableId table);

/// Appends the rows of `batch`; columns are found by name and type.
arrow::Status ArrowToRows(const arrow::RecordBatch& batch, format::TableId table, StringPool* pool,
                          format::Rows* out);

}  // namespace telltale::store
