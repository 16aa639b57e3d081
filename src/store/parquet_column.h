// SPDX-License-Identifier: Apache-2.0
// What those who read the columns of a segment share. Included only by .cc files that use Arrow.
#pragma once
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <parquet/statistics.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "format/column.h"
#include "store/segment.h"

namespace telltale::store {

/// Far above what a writer puts into a row group: a damaged footer must not make us take memory.
inline constexpr std::int64_t kMaxGroupRows = 4 << 20;

/// What the metadata of an open file say of it. Code::kUnusable: none of ours; kVersion: of a later
/// format.
Result<SegmentInfo> SegmentInfoOf(const std::filesystem::path& path,
                                  const parquet::FileMetaData& file);

/// A flipped bit must not become a wrong value, even where nobody ran verify.
inline parquet::ReaderProperties CheckedReading() {
  parquet::ReaderProperties properties = parquet::default_reader_properties();
  properties.set_page_checksum_verification(true);
  return properties;
}

/// The file of a run's segment. Throws, as Parquet does, where it is none or cannot be opened.
std::unique_ptr<parquet::ParquetFileReader> OpenParquet(const std::filesystem::path& path);

inline std::string_view ViewOf(const parquet::ByteArray& bytes) {
  return {reinterpret_cast<const char*>(bytes.ptr), bytes.len};
}

/// Statistics of one column of one row group; null where there are none to rely on.
inline std::shared_ptr<parquet::Statistics> StatisticsOf(const parquet::RowGroupMetaData& group,
                                                         int column) {
  const auto chunk = group.ColumnChunk(column);
  if (!chunk->is_stats_set()) return nullptr;
  auto statistics = chunk->statistics();
  if (statistics == nullptr || !statistics->HasMinMax()) return nullptr;
  return statistics;
}

/// Whether the column holds values as Telltale writes them, which then need no Arrow array.
inline bool IsPlain(const parquet::ColumnDescriptor& column, format::ColumnType type) {
  using Converted = parquet::ConvertedType;
  using Physical = parquet::Type;
  if (column.max_definition_level() != 0 || column.max_repetition_level() != 0) return false;
  const Converted::type as = column.converted_type();
  switch (type) {
    case format::ColumnType::kI32:
      return column.physical_type() == Physical::INT32 &&
             (as == Converted::NONE || as == Converted::INT_32);
    case format::ColumnType::kU32:
      return column.physical_type() == Physical::INT32 && as == Converted::UINT_32;
    case format::ColumnType::kI64:
      return column.physical_type() == Physical::INT64 &&
             (as == Converted::NONE || as == Converted::INT_64);
    case format::ColumnType::kU64:
      return column.physical_type() == Physical::INT64 && as == Converted::UINT_64;
    case format::ColumnType::kF64:
      return column.physical_type() == Physical::DOUBLE && as == Converted::NONE;
    case format::ColumnType::kBool:
      return column.physical_type() == Physical::BOOLEAN;
    case format::ColumnType::kStr:
      return column.physical_type() == Physical::BYTE_ARRAY && as == Converted::UTF8;
  }
  return false;
}

/// Decodes up to `rows` values; returns how many there are.
template <class PhysicalType>
std::size_t Decode(parquet::ColumnReader* column, std::size_t rows,
                   typename PhysicalType::c_type* out) {
  auto* const typed = static_cast<parquet::TypedColumnReader<PhysicalType>*>(column);
  std::size_t done = 0;
  while (done < rows && typed->HasNext()) {
    std::int64_t read = 0;
    typed->ReadBatch(static_cast<std::int64_t>(rows - done), nullptr, nullptr, out + done, &read);
    if (read <= 0) break;
    done += static_cast<std::size_t>(read);
  }
  return done;
}

}  // namespace telltale::store
