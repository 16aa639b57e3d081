// SPDX-License-Identifier: Apache-2.0
// Rows to the Arrow batches that leave the library: the columns of the schema with `writer` before
// them, narrowed to those asked for. Included only by .cc files that use Arrow.
#pragma once
#include <arrow/type_fwd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"

namespace telltale::read {

class BatchShape {
 public:
  /// All columns, or those named, in that order. Code::kUsage names the columns there are.
  static Result<BatchShape> Of(format::TableId table, const std::vector<std::string>& columns);

  format::TableId table() const { return table_; }
  const std::shared_ptr<arrow::Schema>& schema() const { return schema_; }
  /// `writers`: one for all rows, or one a row.
  arrow::Result<std::shared_ptr<arrow::RecordBatch>> Make(
      const format::Rows& rows, const std::vector<std::string_view>& writers) const;

 private:
  format::TableId table_{};
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<int> indices_;  ///< Column of the table, 0 for `writer`.
};

/// The Status of an Arrow error, in one line.
Status FromArrow(const std::string& what, const arrow::Status& status);

}  // namespace telltale::read
