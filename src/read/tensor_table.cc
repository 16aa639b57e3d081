// SPDX-License-Identifier: Apache-2.0
#include "read/tensor_table.h"

#include <arrow/api.h>

#include <utility>

#include "query/table.h"
#include "read/batch_out.h"
#include "store/column_scan.h"

namespace telltale::read {
namespace {

/// One column of a piece as an array of `type`.
arrow::Result<std::shared_ptr<arrow::Array>> ToArray(const store::ScanColumn& column,
                                                     const arrow::DataType& type,
                                                     std::size_t rows) {
  const auto numbers = [&](auto builder) -> arrow::Result<std::shared_ptr<arrow::Array>> {
    using Value = typename decltype(builder)::value_type;
    ARROW_RETURN_NOT_OK(builder.Reserve(static_cast<std::int64_t>(rows)));
    for (std::size_t i = 0; i < rows; ++i) {
      builder.UnsafeAppend(static_cast<Value>(column.Int(i)));
    }
    return builder.Finish();
  };
  switch (type.id()) {
    case arrow::Type::INT32:
      return numbers(arrow::Int32Builder());
    case arrow::Type::INT64:
      return numbers(arrow::Int64Builder());
    case arrow::Type::UINT32:
      return numbers(arrow::UInt32Builder());
    case arrow::Type::UINT64:
      return numbers(arrow::UInt64Builder());
    case arrow::Type::BOOL: {
      arrow::BooleanBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Reserve(static_cast<std::int64_t>(rows)));
      for (std::size_t i = 0; i < rows; ++i) builder.UnsafeAppend(column.Int(i) != 0);
      return builder.Finish();
    }
    case arrow::Type::DOUBLE: {
      arrow::DoubleBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Reserve(static_cast<std::int64_t>(rows)));
      for (std::size_t i = 0; i < rows; ++i) builder.UnsafeAppend(column.Real(i));
      return builder.Finish();
    }
    default: {
      arrow::StringBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Reserve(static_cast<std::int64_t>(rows)));
      for (std::size_t i = 0; i < rows; ++i) ARROW_RETURN_NOT_OK(builder.Append(column.Text(i)));
      return builder.Finish();
    }
  }
}

arrow::Result<std::shared_ptr<arrow::Array>> Repeated(std::string_view text, std::size_t rows) {
  arrow::StringBuilder builder;
  for (std::size_t i = 0; i < rows; ++i) ARROW_RETURN_NOT_OK(builder.Append(text));
  return builder.Finish();
}

}  // namespace

Result<std::shared_ptr<arrow::RecordBatchReader>> TensorTable(
    const std::filesystem::path& run, const std::string& table, const std::string& name,
    const std::vector<std::string>& columns, bool final, store::Salvage* salvage) {
  TELLTALE_ASSIGN_OR_RETURN(const query::Table known, query::Table::Named(table));
  if (known.id() != format::TableId::kStatistics && known.id() != format::TableId::kHistograms &&
      known.id() != format::TableId::kTensors) {
    return {Code::kUsage, "a tensor has no rows in table " + table +
                              ": choose statistics, histograms or tensors"};
  }
  TELLTALE_ASSIGN_OR_RETURN(const BatchShape shape, BatchShape::Of(known.id(), columns));
  store::ScanRequest request{.table = known.id(), .name = name, .final = final};
  std::vector<int> positions;  // Of a column in the scan; -1 is the writer.
  for (const auto& field : shape.schema()->fields()) {
    if (field->name() == "writer") {
      positions.push_back(-1);
      continue;
    }
    positions.push_back(static_cast<int>(request.columns.size()));
    request.columns.push_back(field->name());
  }
  arrow::RecordBatchVector batches;
  const auto take = [&](store::ScanPiece& piece) -> Status {
    arrow::ArrayVector arrays;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      auto array = positions[i] < 0
                       ? Repeated(piece.writer, piece.rows)
                       : ToArray(piece.columns[static_cast<std::size_t>(positions[i])],
                                 *shape.schema()->field(static_cast<int>(i))->type(), piece.rows);
      if (!array.ok()) return FromArrow("cannot make a batch", array.status());
      arrays.push_back(std::move(array).ValueUnsafe());
    }
    batches.push_back(arrow::RecordBatch::Make(
        shape.schema(), static_cast<std::int64_t>(piece.rows), std::move(arrays)));
    return {};
  };
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run, request, take, salvage));
  auto reader = arrow::RecordBatchReader::Make(std::move(batches), shape.schema());
  if (!reader.ok()) return FromArrow("cannot give " + table, reader.status());
  return std::move(reader).ValueUnsafe();
}

}  // namespace telltale::read
