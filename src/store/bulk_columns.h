// SPDX-License-Identifier: Apache-2.0
// Columns of a segment made straight of vectors, for those who have millions of rows at once.
// Included only by .cc files that use Arrow.
#pragma once
#include <arrow/api.h>
#include <parquet/properties.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/segment.h"
#include "store/slice_segment.h"

namespace telltale::store {

using ArrowColumn = arrow::Result<std::shared_ptr<arrow::Array>>;

/// Of the vector's own memory, which must outlive it.
template <class T>
std::shared_ptr<arrow::Array> NumbersColumn(const std::shared_ptr<arrow::DataType>& type,
                                            const std::vector<T>& values) {
  return arrow::MakeArray(arrow::ArrayData::Make(
      type, static_cast<std::int64_t>(values.size()),
      {nullptr, arrow::Buffer::Wrap(values.data(), values.size())}, /*null_count=*/0));
}

/// `codes` index `words`; the codes' memory must outlive it.
ArrowColumn WordsColumn(const std::vector<std::uint32_t>& codes,
                        const std::vector<std::string_view>& words);

/// Importers write as fast as they read: three times as fast as level 3, a tenth larger. `deltas`:
/// columns whose values rarely repeat or count upwards.
parquet::WriterProperties::Builder BulkProperties(std::span<const std::string_view> deltas);

/// One row group. The file is not synced.
Result<SealedRecord> WriteColumns(const std::filesystem::path& folder, const SlicePlace& place,
                                  format::TableId table, std::uint64_t rows,
                                  const arrow::FieldVector& fields,
                                  const arrow::ArrayVector& columns,
                                  const std::shared_ptr<parquet::WriterProperties>& properties);

}  // namespace telltale::store
