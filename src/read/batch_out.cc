// SPDX-License-Identifier: Apache-2.0
#include "read/batch_out.h"

#include <arrow/api.h>

#include "query/table.h"
#include "store/arrow_rows.h"

namespace telltale::read {

Result<BatchShape> BatchShape::Of(format::TableId table, const std::vector<std::string>& columns) {
  const query::Table known(table);
  arrow::FieldVector all = {arrow::field("writer", arrow::utf8(), false)};
  const auto stored = store::ArrowSchemaOf(table);
  for (const auto& field : stored->fields()) all.push_back(field);
  BatchShape shape;
  shape.table_ = table;
  arrow::FieldVector fields;
  const auto add = [&](int index) {
    shape.indices_.push_back(index);
    fields.push_back(all[static_cast<std::size_t>(index)]);
  };
  for (const std::string& name : columns) {
    int index = 0;
    while (index < static_cast<int>(all.size()) &&
           all[static_cast<std::size_t>(index)]->name() != name) {
      ++index;
    }
    if (index == static_cast<int>(all.size())) {
      return {Code::kUsage, "no column '" + name + "': choose among " + known.ColumnNames()};
    }
    add(index);
  }
  if (columns.empty()) {
    for (int index = 0; index < static_cast<int>(all.size()); ++index) add(index);
  }
  shape.schema_ = arrow::schema(std::move(fields));
  return shape;
}

arrow::Result<std::shared_ptr<arrow::RecordBatch>> BatchShape::Make(
    const format::Rows& rows, const std::vector<std::string_view>& writers) const {
  ARROW_ASSIGN_OR_RAISE(const auto batch, store::RowsToArrow(rows, table_));
  arrow::ArrayVector columns;
  for (const int index : indices_) {
    if (index > 0) {
      columns.push_back(batch->column(index - 1));
      continue;
    }
    arrow::StringBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Reserve(batch->num_rows()));
    for (std::int64_t i = 0; i < batch->num_rows(); ++i) {
      ARROW_RETURN_NOT_OK(
          builder.Append(writers.size() == 1 ? writers[0] : writers[static_cast<std::size_t>(i)]));
    }
    ARROW_ASSIGN_OR_RAISE(auto column, builder.Finish());
    columns.push_back(std::move(column));
  }
  return arrow::RecordBatch::Make(schema_, batch->num_rows(), std::move(columns));
}

Status FromArrow(const std::string& what, const arrow::Status& status) {
  std::string text = status.ToStringWithoutContextLines();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  const Code code = status.IsOutOfMemory() ? Code::kLimit
                    : status.IsIOError()   ? Code::kIo
                                           : Code::kUnusable;
  return {code, what + ": " + text};
}

}  // namespace telltale::read
