// SPDX-License-Identifier: Apache-2.0
#include "store/segment_scan.h"

#include <arrow/api.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "store/segment.h"

namespace telltale::store {
namespace {

constexpr const char* kFormatKey = "telltale.format";
constexpr const char* kFormat = "1";

Status Failed(const std::filesystem::path& path, std::string why) {
  for (char& c : why) {
    if (c == '\n') c = ' ';
  }
  return {Code::kUnusable, fmt::format("cannot read {}: {}", path.string(), why)};
}

std::string_view ViewOf(const parquet::ByteArray& bytes) {
  return {reinterpret_cast<const char*>(bytes.ptr), bytes.len};
}

/// Statistics of one column of one row group; null where there are none to rely on.
std::shared_ptr<parquet::Statistics> StatisticsOf(const parquet::RowGroupMetaData& group,
                                                  int column) {
  const auto chunk = group.ColumnChunk(column);
  if (!chunk->is_stats_set()) return nullptr;
  auto statistics = chunk->statistics();
  if (statistics == nullptr || !statistics->HasMinMax()) return nullptr;
  return statistics;
}

enum class Presence { kNone, kSome, kAll };

/// Whether rows of the group may have `name`, by the statistics of its column.
Presence PresenceOf(const parquet::RowGroupMetaData& group, int column, std::string_view name) {
  const auto statistics = StatisticsOf(group, column);
  if (statistics == nullptr || statistics->physical_type() != parquet::Type::BYTE_ARRAY) {
    return Presence::kSome;
  }
  const auto& of_text = static_cast<const parquet::ByteArrayStatistics&>(*statistics);
  const std::string_view low = ViewOf(of_text.min());
  const std::string_view high = ViewOf(of_text.max());
  if (name < low || name > high) return Presence::kNone;
  return low == high ? Presence::kAll : Presence::kSome;
}

/// Fills a column of equal values from the statistics; false where they do not say so.
bool FillConstant(const parquet::RowGroupMetaData& group, int column, format::ColumnType type,
                  std::deque<std::string>* held, ScanColumn* out) {
  const auto statistics = StatisticsOf(group, column);
  if (statistics == nullptr) return false;
  std::int64_t value = 0;
  if (type == format::ColumnType::kStr &&
      statistics->physical_type() == parquet::Type::BYTE_ARRAY) {
    const auto& typed = static_cast<const parquet::ByteArrayStatistics&>(*statistics);
    if (ViewOf(typed.min()) != ViewOf(typed.max())) return false;
    out->texts.assign(1, held->emplace_back(ViewOf(typed.min())));
    out->codes.assign(1, 0);
    out->constant = true;
    return true;
  }
  if (type == format::ColumnType::kI32 && statistics->physical_type() == parquet::Type::INT32) {
    const auto& typed = static_cast<const parquet::Int32Statistics&>(*statistics);
    if (typed.min() != typed.max()) return false;
    value = typed.min();
  } else if (type == format::ColumnType::kI64 &&
             statistics->physical_type() == parquet::Type::INT64) {
    const auto& typed = static_cast<const parquet::Int64Statistics&>(*statistics);
    if (typed.min() != typed.max()) return false;
    value = typed.min();
  } else {
    return false;
  }
  out->ints.assign(1, value);
  out->constant = true;
  return true;
}

void FillZero(format::ColumnType type, ScanColumn* out) {
  out->constant = true;
  if (type == format::ColumnType::kStr) {
    out->texts.assign(1, std::string_view());
    out->codes.assign(1, 0);
  } else if (type == format::ColumnType::kF64) {
    out->reals.assign(1, 0);
  } else {
    out->ints.assign(1, 0);
  }
}

template <class ArrayType>
void AppendInts(const arrow::Array& chunk, std::vector<std::int64_t>* out) {
  const auto& typed = static_cast<const ArrayType&>(chunk);
  const auto* const values = typed.raw_values();
  out->insert(out->end(), values, values + chunk.length());
}

void AppendTexts(const arrow::StringArray& values, std::vector<std::string_view>* out) {
  for (std::int64_t i = 0; i < values.length(); ++i) out->push_back(values.GetView(i));
}

/// False where the column is of another type than the schema's.
bool AppendChunk(const arrow::Array& chunk, format::ColumnType type, ScanColumn* out) {
  using Type = arrow::Type;
  const Type::type id = chunk.type_id();
  if (chunk.null_count() != 0) return false;
  switch (type) {
    case format::ColumnType::kI32:
      if (id != Type::INT32) return false;
      AppendInts<arrow::Int32Array>(chunk, &out->ints);
      return true;
    case format::ColumnType::kU32:
      if (id != Type::UINT32) return false;
      AppendInts<arrow::UInt32Array>(chunk, &out->ints);
      return true;
    case format::ColumnType::kI64:
      if (id != Type::INT64) return false;
      AppendInts<arrow::Int64Array>(chunk, &out->ints);
      return true;
    case format::ColumnType::kU64:
      if (id != Type::UINT64) return false;
      AppendInts<arrow::UInt64Array>(chunk, &out->ints);
      return true;
    case format::ColumnType::kBool: {
      if (id != Type::BOOL) return false;
      const auto& typed = static_cast<const arrow::BooleanArray&>(chunk);
      for (std::int64_t i = 0; i < chunk.length(); ++i) out->ints.push_back(typed.Value(i) ? 1 : 0);
      return true;
    }
    case format::ColumnType::kF64: {
      if (id != Type::DOUBLE) return false;
      const double* const values = static_cast<const arrow::DoubleArray&>(chunk).raw_values();
      out->reals.insert(out->reals.end(), values, values + chunk.length());
      return true;
    }
    case format::ColumnType::kStr: {
      const auto base = static_cast<std::uint32_t>(out->texts.size());
      if (id == Type::STRING) {
        AppendTexts(static_cast<const arrow::StringArray&>(chunk), &out->texts);
        for (std::int64_t i = 0; i < chunk.length(); ++i) {
          out->codes.push_back(base + static_cast<std::uint32_t>(i));
        }
        return true;
      }
      if (id != Type::DICTIONARY) return false;
      const auto& typed = static_cast<const arrow::DictionaryArray&>(chunk);
      if (typed.dictionary()->type_id() != Type::STRING ||
          typed.indices()->type_id() != Type::INT32) {
        return false;
      }
      const auto& texts = static_cast<const arrow::StringArray&>(*typed.dictionary());
      const auto& codes = static_cast<const arrow::Int32Array&>(*typed.indices());
      AppendTexts(texts, &out->texts);
      const std::int32_t* const raw = codes.raw_values();
      std::uint32_t highest = 0;
      const std::size_t begin = out->codes.size();
      out->codes.resize(begin + static_cast<std::size_t>(codes.length()));
      std::uint32_t* const to = out->codes.data() + begin;
      for (std::int64_t i = 0; i < codes.length(); ++i) {
        const auto code = static_cast<std::uint32_t>(raw[i]);
        highest = std::max(highest, code);
        to[i] = base + code;
      }
      // A negative one is high here.
      if (codes.length() > 0 && highest >= static_cast<std::uint64_t>(texts.length())) return false;
      return true;
    }
  }
  return false;
}

/// Rows [begin, end).
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

template <class T>
void Keep(const std::vector<Range>& ranges, std::vector<T>* values) {
  if (values->empty()) return;
  auto to = values->begin();
  for (const Range& range : ranges) {
    to = std::copy(values->begin() + static_cast<std::ptrdiff_t>(range.begin),
                   values->begin() + static_cast<std::ptrdiff_t>(range.end), to);
  }
  values->erase(to, values->end());
}

/// One segment that is open.
class SegmentScan {
 public:
  SegmentScan(const std::filesystem::path& path, const ScanRequest& request)
      : path_(path), request_(request) {}

  Status Open() {
    parquet::ReaderProperties checked = parquet::default_reader_properties();
    checked.set_page_checksum_verification(true);
    auto parquet = parquet::ParquetFileReader::OpenFile(path_.string(), false, checked);
    metadata_ = parquet->metadata();
    const auto keys = metadata_->key_value_metadata();
    if (keys == nullptr || keys->Get(kFormatKey).ValueOr("") != kFormat) {
      // Of a later format, or none of ours: the words are there already.
      const Result<SegmentInfo> info = ReadSegmentInfo(path_);
      if (!info.ok()) return info.status();
    }
    // No thread pools of Arrow's: a reader may fork, and must not cost more than it seems to.
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);
    const auto add = [&](const std::string& name) {
      const int index = metadata_->schema()->ColumnIndex(name);
      const auto type = TypeOfColumn(request_.table, name);
      if (index >= 0 && type == format::ColumnType::kStr) {
        properties.set_read_dictionary(index, true);
      }
      return index;
    };
    for (const std::string& name : request_.columns) columns_.push_back(add(name));
    if (request_.name) name_column_ = add("name");
    const arrow::Status made = parquet::arrow::FileReader::Make(
        arrow::default_memory_pool(), std::move(parquet), properties, &reader_);
    return made.ok() ? Status() : Failed(path_, made.ToStringWithoutContextLines());
  }

  std::uint64_t rows() const { return static_cast<std::uint64_t>(metadata_->num_rows()); }
  int groups() const { return metadata_->num_row_groups(); }

  Status Group(int index, std::string_view writer, const ScanVisitor& visit) {
    const auto group = metadata_->RowGroup(index);
    const auto rows = static_cast<std::size_t>(group->num_rows());
    std::vector<Range> chosen;
    std::size_t chosen_rows = 0;
    Presence presence = Presence::kAll;
    if (request_.name) {
      if (name_column_ < 0) return {};
      presence = PresenceOf(*group, name_column_, *request_.name);
      if (presence == Presence::kNone) return {};
      if (presence == Presence::kSome) {
        TELLTALE_RETURN_IF_ERROR(Choose(index, &chosen));
        for (const Range& range : chosen) chosen_rows += range.end - range.begin;
        if (chosen_rows == 0) return {};
        if (chosen_rows == rows) presence = Presence::kAll;
      }
    }
    ScanPiece piece{.writer = writer, .rows = presence == Presence::kAll ? rows : chosen_rows};
    if (piece.rows == 0) return {};
    std::deque<std::string> held;
    std::vector<std::shared_ptr<arrow::Table>> tables;  // The texts lie in them.
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      ScanColumn& column = piece.columns.emplace_back();
      const format::ColumnType type = *TypeOfColumn(request_.table, request_.columns[i]);
      if (columns_[i] < 0) {
        FillZero(type, &column);
        continue;
      }
      if (FillConstant(*group, columns_[i], type, &held, &column)) continue;
      TELLTALE_RETURN_IF_ERROR(Read(index, columns_[i], type, rows, &column, &tables));
      if (presence == Presence::kAll) continue;
      Keep(chosen, &column.ints);
      Keep(chosen, &column.reals);
      Keep(chosen, &column.codes);
    }
    return visit(piece);
  }

 private:
  Status Read(int group, int column, format::ColumnType type, std::size_t rows, ScanColumn* out,
              std::vector<std::shared_ptr<arrow::Table>>* tables) {
    std::shared_ptr<arrow::Table> table;
    const arrow::Status read = reader_->ReadRowGroup(group, {column}, &table);
    if (!read.ok()) return Failed(path_, read.ToStringWithoutContextLines());
    if (table->num_columns() != 1 || static_cast<std::size_t>(table->num_rows()) != rows) {
      return Failed(path_, "a column has other rows than its row group");
    }
    if (type == format::ColumnType::kStr) {
      out->codes.reserve(rows);
    } else if (type == format::ColumnType::kF64) {
      out->reals.reserve(rows);
    } else {
      out->ints.reserve(rows);
    }
    for (const auto& chunk : table->column(0)->chunks()) {
      if (AppendChunk(*chunk, type, out)) continue;
      return Failed(path_, fmt::format("column {} is of another type than this telltale knows",
                                       table->field(0)->name()));
    }
    tables->push_back(std::move(table));
    return {};
  }

  /// The rows of the group that have the name.
  Status Choose(int group, std::vector<Range>* chosen) {
    ScanColumn names;
    std::vector<std::shared_ptr<arrow::Table>> tables;
    const auto rows = static_cast<std::size_t>(metadata_->RowGroup(group)->num_rows());
    TELLTALE_RETURN_IF_ERROR(
        Read(group, name_column_, format::ColumnType::kStr, rows, &names, &tables));
    std::vector<char> wanted;
    bool any = false;
    for (const std::string_view text : names.texts) {
      wanted.push_back(text == *request_.name ? 1 : 0);
      any = any || wanted.back() != 0;
    }
    for (std::size_t i = 0; any && i < names.codes.size(); ++i) {
      if (wanted[names.codes[i]] == 0) continue;
      if (!chosen->empty() && chosen->back().end == i) {
        ++chosen->back().end;
      } else {
        chosen->push_back({i, i + 1});
      }
    }
    return {};
  }

  const std::filesystem::path path_;
  const ScanRequest& request_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> columns_;  ///< Of the file, -1 where it lacks one.
  int name_column_ = -1;
};

}  // namespace

Result<std::uint64_t> ScanSegment(const std::filesystem::path& path, std::string_view writer,
                                  const ScanRequest& request, const ScanVisitor& visit) {
  // Parquet's own code throws; nothing of that may leave this file.
  try {
    SegmentScan scan(path, request);
    TELLTALE_RETURN_IF_ERROR(scan.Open());
    for (int i = 0; i < scan.groups(); ++i) {
      TELLTALE_RETURN_IF_ERROR(scan.Group(i, writer, visit));
    }
    return scan.rows();
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("cannot read {}: out of memory", path.string())};
  } catch (const std::exception& error) {
    return Failed(path, error.what());
  }
}

}  // namespace telltale::store
