// SPDX-License-Identifier: Apache-2.0
#include "store/segment_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "store/folder.h"
#include "store/parquet_column.h"

namespace telltale::store {
namespace {

/// Columns go into rows: all of them for some rows, while those rows are in the cache. Of the
/// widest table some 100 KiB.
constexpr std::size_t kBlockRows = 512;

/// Smallest ord_ns of rows of which nobody says it.
constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();

template <class Value>
struct PhysicalOf;
template <>
struct PhysicalOf<std::int32_t> : std::type_identity<parquet::Int32Type> {};
template <>
struct PhysicalOf<std::uint32_t> : std::type_identity<parquet::Int32Type> {};
template <>
struct PhysicalOf<std::int64_t> : std::type_identity<parquet::Int64Type> {};
template <>
struct PhysicalOf<std::uint64_t> : std::type_identity<parquet::Int64Type> {};
template <>
struct PhysicalOf<double> : std::type_identity<parquet::DoubleType> {};
template <>
struct PhysicalOf<bool> : std::type_identity<parquet::BooleanType> {};

/// Where the values of a column come from, in the present row group.
enum class From : std::uint8_t {
  kNothing,   ///< The rows keep their zero.
  kConstant,  ///< The statistics say that they are all the same.
  kOrder,     ///< Decoded beforehand.
  kValues,
  kWords,  ///< Texts as indices of a dictionary.
};

struct Column {
  int index = -1;  ///< In the file.
  From from = From::kNothing;
  std::shared_ptr<parquet::ColumnReader> reader;
  std::int64_t number = 0;  ///< Of kConstant.
  std::string text;
  // Of kWords:
  const parquet::ByteArray* dictionary = nullptr;
  std::int32_t words = 0;
  std::vector<std::string_view> interned;  ///< In the pool of the call; no data: not yet.
};

[[noreturn]] void Damaged(const char* what) { throw parquet::ParquetException(what); }

/// Sets a column whose values are all the same; false where the statistics do not say so. They say
/// nothing of a NaN beside the smallest and largest number.
bool SetConstant(const parquet::RowGroupMetaData& group, format::ColumnType type, Column* column) {
  if (type == format::ColumnType::kF64) return false;
  const auto statistics = StatisticsOf(group, column->index);
  if (statistics == nullptr) return false;
  switch (statistics->physical_type()) {
    case parquet::Type::BYTE_ARRAY: {
      const auto& typed = static_cast<const parquet::ByteArrayStatistics&>(*statistics);
      if (ViewOf(typed.min()) != ViewOf(typed.max())) return false;
      column->text = ViewOf(typed.min());
      return true;
    }
    case parquet::Type::BOOLEAN: {
      const auto& typed = static_cast<const parquet::BoolStatistics&>(*statistics);
      column->number = typed.min() ? 1 : 0;
      return typed.min() == typed.max();
    }
    case parquet::Type::INT32: {
      const auto& typed = static_cast<const parquet::Int32Statistics&>(*statistics);
      column->number = typed.min();
      return typed.min() == typed.max();
    }
    case parquet::Type::INT64: {
      const auto& typed = static_cast<const parquet::Int64Statistics&>(*statistics);
      column->number = typed.min();
      return typed.min() == typed.max();
    }
    default:
      return false;
  }
}

}  // namespace

class SegmentReader::Impl {
 public:
  explicit Impl(std::filesystem::path path) : path_(std::move(path)) {}

  Status Open() {
    file_ = OpenParquet(path_);
    const auto metadata = file_->metadata();
    TELLTALE_ASSIGN_OR_RETURN(info_, SegmentInfoOf(path_, *metadata));
    for (const format::ColumnDesc& desc : FindTable(info_.table)->columns) {
      Column& column = columns_.emplace_back();
      const int index = metadata->schema()->ColumnIndex(std::string(desc.name));
      if (index < 0) continue;
      const parquet::ColumnDescriptor& descriptor = *metadata->schema()->Column(index);
      // Ours are not: then it was written by something else, and Arrow knows how to read it.
      if (descriptor.max_definition_level() != 0) whole_ = true;
      if (!IsPlain(descriptor, desc.type)) continue;
      column.index = index;
      if (desc.name == "ord_ns") order_ = columns_.size() - 1;
    }
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    group_least_.assign(static_cast<std::size_t>(metadata->num_row_groups()) + 1, least);
    for (int i = metadata->num_row_groups() - 1; i >= 0; --i) {
      const auto group = metadata->RowGroup(i);
      if (group->num_rows() > 0) least = std::min(least, LeastOf(*group));
      group_least_[static_cast<std::size_t>(i)] = least;
    }
    return {};
  }

  const SegmentInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return path_; }
  bool at_end() const { return at_ == rows_ && next_group_ + 1 >= group_least_.size(); }

  std::int64_t least_ord_ns() const {
    const std::int64_t later = group_least_[next_group_];
    return at_ == rows_ ? later : std::min(later, least_from_[at_ / kBlockRows]);
  }

  Status Read(std::size_t max_rows, StringPool* pool, format::Rows* out) {
    if (whole_) {
      next_group_ = group_least_.size() - 1;
      const Result<SegmentInfo> read = ReadSegment(path_, pool, out);
      return read.status();
    }
    format::ForEachTable(*out, [&](auto& rows) {
      using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
      if (Row::kTable != info_.table) return;
      const std::size_t before = rows.size();
      try {
        Append(max_rows, pool, &rows);
      } catch (...) {
        rows.resize(before);
        at_ = rows_ = 0;
        next_group_ = group_least_.size() - 1;
        throw;
      }
    });
    return {};
  }

 private:
  /// Smallest ord_ns of a row group, as the footer says.
  std::int64_t LeastOf(const parquet::RowGroupMetaData& group) const {
    if (whole_ || order_ >= columns_.size()) return kUnknown;
    const auto statistics = StatisticsOf(group, columns_[order_].index);
    if (statistics == nullptr || statistics->physical_type() != parquet::Type::INT64) {
      return kUnknown;
    }
    return static_cast<const parquet::Int64Statistics&>(*statistics).min();
  }

  void OpenGroup() {
    const int index = static_cast<int>(next_group_++);
    const auto metadata = file_->metadata()->RowGroup(index);
    at_ = 0;
    rows_ = static_cast<std::size_t>(metadata->num_rows());
    least_from_.assign((rows_ + kBlockRows - 1) / kBlockRows, kUnknown);
    const auto group = file_->RowGroup(index);
    const auto& table = FindTable(info_.table)->columns;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      column.reader.reset();
      column.dictionary = nullptr;
      column.words = 0;
      if (column.index < 0) continue;
      if (i == order_) {
        column.from = From::kOrder;
        DecodeOrder(group->Column(column.index).get());
      } else if (SetConstant(*metadata, table[i].type, &column)) {
        column.from = From::kConstant;
      } else if (table[i].type == format::ColumnType::kStr) {
        column.reader =
            group->ColumnWithExposeEncoding(column.index, parquet::ExposedEncoding::DICTIONARY);
        const bool words =
            column.reader->GetExposedEncoding() == parquet::ExposedEncoding::DICTIONARY;
        column.from = words ? From::kWords : From::kValues;
      } else {
        column.from = From::kValues;
        column.reader = group->Column(column.index);
      }
    }
  }

  /// All of the row group at once: the smallest that is to come is asked for after each piece.
  void DecodeOrder(parquet::ColumnReader* reader) {
    order_values_.resize(rows_);
    if (Decode<parquet::Int64Type>(reader, rows_, order_values_.data()) != rows_) {
      Damaged("a column has fewer rows than its row group");
    }
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t at = rows_; at-- > 0;) {
      least = std::min(least, order_values_[at]);
      if (at % kBlockRows == 0) least_from_[at / kBlockRows] = least;
    }
  }

  template <class Row>
  void Append(std::size_t max_rows, StringPool* pool, std::vector<Row>* out) {
    while (at_ == rows_ && !at_end()) OpenGroup();
    for (Column& column : columns_) column.interned.clear();
    const std::size_t end = at_ + std::min(max_rows, rows_ - at_);
    out->reserve(out->size() + (end - at_));
    while (at_ < end) {
      const std::size_t n = std::min(kBlockRows, end - at_);
      out->resize(out->size() + n);
      Fill(pool, n, out->data() + out->size() - n);
      at_ += n;
    }
  }

  template <class Row>
  void Fill(StringPool* pool, std::size_t n, Row* rows) {
    auto next = columns_.begin();
    format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
      using Value = std::remove_cvref_t<decltype(rows->*member)>;
      Column& column = *next++;
      switch (column.from) {
        case From::kNothing:
          return;
        case From::kConstant:
          FillConstant(column, pool, n, rows, member);
          return;
        case From::kOrder:
          if constexpr (std::is_same_v<Value, std::int64_t>) {
            for (std::size_t i = 0; i < n; ++i) rows[i].*member = order_values_[at_ + i];
          }
          return;
        case From::kValues:
          if constexpr (std::is_same_v<Value, std::string_view>) {
            FillTexts(column.reader.get(), pool, n, rows, member);
          } else {
            FillNumbers<Value>(column.reader.get(), n, rows, member);
          }
          return;
        case From::kWords:
          if constexpr (std::is_same_v<Value, std::string_view>) {
            FillWords(&column, pool, n, rows, member);
          }
          return;
      }
    });
  }

  template <class Row, class Member>
  static void FillConstant(const Column& column, StringPool* pool, std::size_t n, Row* rows,
                           Member member) {
    using Value = std::remove_cvref_t<decltype(rows->*member)>;
    Value value{};
    if constexpr (std::is_same_v<Value, std::string_view>) {
      value = pool->Intern(column.text);
    } else {
      value = static_cast<Value>(column.number);
    }
    if (value == Value{}) return;
    for (std::size_t i = 0; i < n; ++i) rows[i].*member = value;
  }

  template <class Value, class Row, class Member>
  static void FillNumbers(parquet::ColumnReader* reader, std::size_t n, Row* rows, Member member) {
    using Physical = typename PhysicalOf<Value>::type;
    std::array<typename Physical::c_type, kBlockRows> values;
    if (Decode<Physical>(reader, n, values.data()) != n) {
      Damaged("a column has fewer rows than its row group");
    }
    for (std::size_t i = 0; i < n; ++i) rows[i].*member = static_cast<Value>(values[i]);
  }

  template <class Row, class Member>
  static void FillTexts(parquet::ColumnReader* reader, StringPool* pool, std::size_t n, Row* rows,
                        Member member) {
    // One batch after the other: a text lies in its page, which the next batch may let go.
    auto* const typed = static_cast<parquet::ByteArrayReader*>(reader);
    std::array<parquet::ByteArray, kBlockRows> texts;
    std::string_view last;
    for (std::size_t done = 0; done < n;) {
      std::int64_t read = 0;
      if (typed->HasNext()) {
        typed->ReadBatch(static_cast<std::int64_t>(n - done), nullptr, nullptr, texts.data(),
                         &read);
      }
      if (read <= 0) Damaged("a column has fewer rows than its row group");
      for (std::int64_t i = 0; i < read; ++i) {
        // Most columns repeat their value: spare the look-up.
        const std::string_view text = ViewOf(texts[static_cast<std::size_t>(i)]);
        if (text != last) last = pool->Intern(text);
        rows[done++].*member = last;
      }
    }
  }

  template <class Row, class Member>
  static void FillWords(Column* column, StringPool* pool, std::size_t n, Row* rows, Member member) {
    auto* const typed = static_cast<parquet::ByteArrayReader*>(column->reader.get());
    std::array<std::int32_t, kBlockRows> codes;
    for (std::size_t done = 0; done < n;) {
      std::int64_t read = 0;
      const parquet::ByteArray* dictionary = nullptr;
      std::int32_t words = 0;
      if (typed->HasNext()) {
        typed->ReadBatchWithDictionary(static_cast<std::int64_t>(n - done), nullptr, nullptr,
                                       codes.data(), &read, &dictionary, &words);
      }
      if (read <= 0) Damaged("a column has fewer rows than its row group");
      if (dictionary != column->dictionary || words != column->words) {
        column->dictionary = dictionary;
        column->words = words;
        column->interned.clear();
      }
      column->interned.resize(static_cast<std::size_t>(words));
      for (std::int64_t i = 0; i < read; ++i) {
        const std::int32_t code = codes[static_cast<std::size_t>(i)];
        if (code < 0 || code >= words) Damaged("an index is beyond its dictionary");
        std::string_view& text = column->interned[static_cast<std::size_t>(code)];
        if (text.data() == nullptr) text = pool->Intern(ViewOf(dictionary[code]));
        rows[done++].*member = text;
      }
    }
  }

  const std::filesystem::path path_;
  SegmentInfo info_;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  bool whole_ = false;                   ///< It is read at once, by Arrow.
  std::vector<Column> columns_;          ///< Of the table, in the schema's order.
  std::size_t order_ = ~std::size_t{0};  ///< Which of them is ord_ns.
  std::size_t next_group_ = 0;
  std::vector<std::int64_t> group_least_;  ///< By row group: smallest ord_ns from there on.

  // Of the present row group:
  std::size_t rows_ = 0;
  std::size_t at_ = 0;
  std::vector<std::int64_t> order_values_;
  std::vector<std::int64_t>
      least_from_;  ///< By block of kBlockRows: smallest ord_ns from there on.
};

namespace {

/// Parquet's own code throws; nothing of that may leave this file.
template <class F>
Status Caught(const std::filesystem::path& path, F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("cannot read {}: out of memory", path.string())};
  } catch (const std::exception& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    return {Code::kUnusable, fmt::format("cannot read {}: {}", path.string(), why)};
  }
}

}  // namespace

SegmentReader::SegmentReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SegmentReader::~SegmentReader() = default;

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(const std::filesystem::path& path) {
  auto impl = std::make_unique<Impl>(path);
  TELLTALE_RETURN_IF_ERROR(Caught(path, [&] { return impl->Open(); }));
  return std::unique_ptr<SegmentReader>(new SegmentReader(std::move(impl)));
}

const SegmentInfo& SegmentReader::info() const { return impl_->info(); }
const std::filesystem::path& SegmentReader::path() const { return impl_->path(); }
bool SegmentReader::at_end() const { return impl_->at_end(); }
std::int64_t SegmentReader::least_ord_ns() const { return impl_->least_ord_ns(); }

Status SegmentReader::Read(std::size_t max_rows, StringPool* pool, format::Rows* out) {
  return Caught(impl_->path(), [&] { return impl_->Read(max_rows, pool, out); });
}

}  // namespace telltale::store
