// SPDX-License-Identifier: Apache-2.0
#include "store/segment_scan.h"

#include <arrow/api.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "store/folder.h"
#include "store/parquet_column.h"
#include "store/segment.h"

namespace telltale::store {
namespace {

Status Failed(const std::filesystem::path& path, std::string why) {
  for (char& c : why) {
    if (c == '\n') c = ' ';
  }
  return {Code::kUnusable, fmt::format("cannot read {}: {}", path.string(), why)};
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

/// Whether a text of the group may be empty, by the statistics of its column.
bool MayBeEmpty(const parquet::RowGroupMetaData& group, int column) {
  const auto statistics = StatisticsOf(group, column);
  if (statistics == nullptr || statistics->physical_type() != parquet::Type::BYTE_ARRAY) {
    return true;
  }
  return ViewOf(static_cast<const parquet::ByteArrayStatistics&>(*statistics).min()).empty();
}

/// Whether steps of the group may be among these, by the statistics of its column.
Presence PresenceOf(const parquet::RowGroupMetaData& group, int column, const StepRange& steps) {
  const auto statistics = StatisticsOf(group, column);
  if (statistics == nullptr || statistics->physical_type() != parquet::Type::INT64) {
    return Presence::kSome;
  }
  const auto& typed = static_cast<const parquet::Int64Statistics&>(*statistics);
  if (typed.max() < steps.first || typed.min() > steps.last) return Presence::kNone;
  return steps.Has(typed.min()) && steps.Has(typed.max()) ? Presence::kAll : Presence::kSome;
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
  if ((type == format::ColumnType::kI32 || type == format::ColumnType::kU32) &&
      statistics->physical_type() == parquet::Type::INT32) {
    const auto& typed = static_cast<const parquet::Int32Statistics&>(*statistics);
    if (typed.min() != typed.max()) return false;
    const std::int32_t low = typed.min();
    value = type == format::ColumnType::kI32 ? std::int64_t{low}
                                             : std::int64_t{static_cast<std::uint32_t>(low)};
  } else if ((type == format::ColumnType::kI64 || type == format::ColumnType::kU64) &&
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

/// Whether the column holds numbers as Telltale writes them.
bool IsPlainNumber(const parquet::ColumnDescriptor& column, format::ColumnType type) {
  return type != format::ColumnType::kBool && type != format::ColumnType::kStr &&
         IsPlain(column, type);
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
    parquet_ = OpenParquet(path_);
    metadata_ = parquet_->metadata();
    TELLTALE_ASSIGN_OR_RETURN(const SegmentInfo info, SegmentInfoOf(path_, *metadata_));
    if (info.table != request_.table) {
      return Failed(path_, fmt::format("it holds rows of table {}", FindTable(info.table)->name));
    }
    properties_.set_pre_buffer(false);
    const auto add = [&](const std::string& name) {
      const int index = metadata_->schema()->ColumnIndex(name);
      const auto type = TypeOfColumn(request_.table, name);
      if (index >= 0 && type == format::ColumnType::kStr) {
        properties_.set_read_dictionary(index, true);
      }
      return index;
    };
    for (const std::string& name : request_.columns) columns_.push_back(add(name));
    if (request_.name) name_column_ = add("name");
    if (request_.not_empty) text_column_ = add(*request_.not_empty);
    if (request_.steps) step_column_ = add("step");
    if (request_.file) file_column_ = add("file");
    return {};
  }

  std::uint64_t rows() const { return static_cast<std::uint64_t>(metadata_->num_rows()); }
  int groups() const { return metadata_->num_row_groups(); }

  Status Group(int index, std::string_view writer, const ScanVisitor& visit) {
    const auto group = metadata_->RowGroup(index);
    const auto rows = static_cast<std::size_t>(group->num_rows());
    std::vector<Range> chosen = {{0, rows}};
    if (request_.steps) {
      Presence presence = request_.steps->Has(0) ? Presence::kAll : Presence::kNone;
      if (step_column_ >= 0) presence = PresenceOf(*group, step_column_, *request_.steps);
      if (presence == Presence::kNone) return {};
      if (presence == Presence::kSome) {
        ScanColumn steps;
        std::vector<std::shared_ptr<arrow::Table>> tables;
        TELLTALE_RETURN_IF_ERROR(
            Read(index, step_column_, format::ColumnType::kI64, rows, &steps, &tables));
        Leave([&](std::size_t row) { return request_.steps->Has(steps.ints[row]); }, &chosen);
      }
    }
    for (const auto& [wanted, column] :
         {std::pair(&request_.name, name_column_), std::pair(&request_.file, file_column_)}) {
      if (!*wanted) continue;
      const std::string& text = **wanted;
      const Presence presence =
          column < 0 ? Presence::kNone : PresenceOf(*group, column, std::string_view(text));
      if (presence == Presence::kNone) return {};
      if (presence == Presence::kSome) {
        const auto same = [&text](std::string_view other) { return other == text; };
        TELLTALE_RETURN_IF_ERROR(Choose(index, column, same, &chosen));
      }
    }
    if (request_.not_empty) {
      if (text_column_ < 0) return {};
      if (MayBeEmpty(*group, text_column_)) {
        TELLTALE_RETURN_IF_ERROR(Choose(
            index, text_column_, [](std::string_view text) { return !text.empty(); }, &chosen));
      }
    }
    std::size_t chosen_rows = 0;
    for (const Range& range : chosen) chosen_rows += range.end - range.begin;
    ScanPiece piece{.writer = writer, .rows = chosen_rows};
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
      if (chosen_rows == rows) continue;
      Keep(chosen, &column.ints);
      Keep(chosen, &column.reals);
      Keep(chosen, &column.codes);
    }
    return visit(piece);
  }

 private:
  Status Read(int group, int column, format::ColumnType type, std::size_t rows, ScanColumn* out,
              std::vector<std::shared_ptr<arrow::Table>>* tables) {
    if (IsPlainNumber(*metadata_->schema()->Column(column), type)) {
      return ReadNumbers(group, column, type, rows, out);
    }
    if (reader_ == nullptr) {
      // Only now: most looks are for steps alone, and a long run has many segments.
      const arrow::Status made = parquet::arrow::FileReader::Make(
          arrow::default_memory_pool(), std::move(parquet_), properties_, &reader_);
      if (!made.ok()) return Failed(path_, made.ToStringWithoutContextLines());
    }
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

  /// Straight from the column's pages into the vectors.
  Status ReadNumbers(int group, int column, format::ColumnType type, std::size_t rows,
                     ScanColumn* out) {
    parquet::ParquetFileReader* const file =
        parquet_ != nullptr ? parquet_.get() : reader_->parquet_reader();
    const auto reader = file->RowGroup(group);
    const auto values = reader->Column(column);
    std::size_t read = 0;
    if (type == format::ColumnType::kF64) {
      out->reals.resize(rows);
      read = Decode<parquet::DoubleType>(values.get(), rows, out->reals.data());
    } else if (type == format::ColumnType::kI64 || type == format::ColumnType::kU64) {
      out->ints.resize(rows);
      read = Decode<parquet::Int64Type>(values.get(), rows, out->ints.data());
    } else {
      std::vector<std::int32_t> narrow(rows);
      read = Decode<parquet::Int32Type>(values.get(), rows, narrow.data());
      out->ints.reserve(rows);
      for (const std::int32_t value : narrow) {
        out->ints.push_back(type == format::ColumnType::kI32
                                ? std::int64_t{value}
                                : std::int64_t{static_cast<std::uint32_t>(value)});
      }
    }
    if (read == rows) return {};
    return Failed(path_, "a column has fewer rows than its row group");
  }

  /// Leaves of the rows chosen those that `wanted` takes.
  template <class F>
  static void Leave(F&& wanted, std::vector<Range>* chosen) {
    std::vector<Range> left;
    for (const Range& range : *chosen) {
      for (std::size_t i = range.begin; i < range.end; ++i) {
        if (!wanted(i)) continue;
        if (!left.empty() && left.back().end == i) {
          ++left.back().end;
        } else {
          left.push_back({i, i + 1});
        }
      }
    }
    *chosen = std::move(left);
  }

  /// Leaves of the rows chosen those whose text `wanted` takes.
  template <class F>
  Status Choose(int group, int column, F&& wanted, std::vector<Range>* chosen) {
    ScanColumn texts;
    std::vector<std::shared_ptr<arrow::Table>> tables;
    const auto rows = static_cast<std::size_t>(metadata_->RowGroup(group)->num_rows());
    TELLTALE_RETURN_IF_ERROR(Read(group, column, format::ColumnType::kStr, rows, &texts, &tables));
    std::vector<char> taken;
    for (const std::string_view text : texts.texts) taken.push_back(wanted(text) ? 1 : 0);
    Leave([&](std::size_t row) { return taken[texts.codes[row]] != 0; }, chosen);
    return {};
  }

  const std::filesystem::path path_;
  const ScanRequest& request_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::unique_ptr<parquet::ParquetFileReader> parquet_;  ///< Until Arrow's reader takes it over.
  /// No thread pools of Arrow's: a reader may fork, and must not cost more than it seems to.
  parquet::ArrowReaderProperties properties_{/*use_threads=*/false};
  std::unique_ptr<parquet::arrow::FileReader> reader_;  ///< Null until a column needs it.
  std::vector<int> columns_;                            ///< Of the file, -1 where it lacks one.
  int name_column_ = -1;
  int text_column_ = -1;  ///< The one that is not to be empty.
  int step_column_ = -1;
  int file_column_ = -1;
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
