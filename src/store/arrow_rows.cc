// SPDX-License-Identifier: Apache-2.0
#include "store/arrow_rows.h"

#include <arrow/api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace telltale::store {
namespace {

constexpr std::int64_t kRowsInCache = 512;  ///< Of the widest table some 100 KiB.

template <class T>
struct ArrowTypeOf;
template <>
struct ArrowTypeOf<std::int32_t> : std::type_identity<arrow::Int32Type> {};
template <>
struct ArrowTypeOf<std::int64_t> : std::type_identity<arrow::Int64Type> {};
template <>
struct ArrowTypeOf<std::uint32_t> : std::type_identity<arrow::UInt32Type> {};
template <>
struct ArrowTypeOf<std::uint64_t> : std::type_identity<arrow::UInt64Type> {};
template <>
struct ArrowTypeOf<double> : std::type_identity<arrow::DoubleType> {};
template <>
struct ArrowTypeOf<bool> : std::type_identity<arrow::BooleanType> {};
template <>
struct ArrowTypeOf<std::string_view> : std::type_identity<arrow::StringType> {};

template <class Row, class Member>
using ValueOf = std::remove_cvref_t<decltype(std::declval<Row>().*std::declval<Member>())>;

/// Calls f with the rows of `table`.
template <class AnyRows, class F>
void WithTable(AnyRows& rows, format::TableId table, F&& f) {
  format::ForEachTable(rows, [&](auto& of_table) {
    using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
    if (Row::kTable == table) f(of_table);
  });
}

template <class Row>
arrow::Status BuildColumns(const std::vector<Row>& rows, arrow::ArrayVector* columns) {
  arrow::Status status;
  format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
    if (!status.ok()) return;
    using Builder = typename arrow::TypeTraits<
        typename ArrowTypeOf<ValueOf<Row, decltype(member)>>::type>::BuilderType;
    Builder builder;
    status = builder.Reserve(static_cast<std::int64_t>(rows.size()));
    for (std::size_t i = 0; i < rows.size() && status.ok(); ++i) {
      status = builder.Append(rows[i].*member);
    }
    std::shared_ptr<arrow::Array> array;
    if (status.ok()) status = builder.Finish(&array);
    columns->push_back(std::move(array));
  });
  return status;
}

/// A column of a batch as rows take it: one of its type, or texts as indices of a dictionary.
struct ColumnSource {
  const arrow::Array* array = nullptr;  ///< nullptr: the rows keep their zero.
  const std::int32_t* indices = nullptr;
  std::vector<std::string_view> words;  ///< Of the dictionary, interned once a batch.
  bool nulls = false;
  bool damaged = false;  ///< Some index is beyond the dictionary.
};

ColumnSource TextSource(const arrow::Array& column, StringPool* pool) {
  ColumnSource source;
  if (column.type_id() == arrow::Type::STRING) {
    source.array = &column;
  } else if (column.type_id() == arrow::Type::DICTIONARY) {
    const auto& texts = static_cast<const arrow::DictionaryArray&>(column);
    if (texts.indices()->type_id() != arrow::Type::INT32 ||
        texts.dictionary()->type_id() != arrow::Type::STRING) {
      return source;
    }
    source.array = &column;
    source.indices = static_cast<const arrow::Int32Array&>(*texts.indices()).raw_values();
    const auto& dictionary = static_cast<const arrow::StringArray&>(*texts.dictionary());
    // Of a damaged file they are anything: nothing else looks at them before they are used.
    for (std::int64_t i = 0; i < texts.length(); ++i) {
      const bool within = source.indices[i] >= 0 && source.indices[i] < dictionary.length();
      if (!within && texts.IsValid(i)) source.damaged = true;
    }
    for (std::int64_t i = 0; i < dictionary.length(); ++i) {
      source.words.push_back(dictionary.IsNull(i) ? std::string_view()
                                                  : pool->Intern(dictionary.GetView(i)));
    }
  }
  return source;
}

/// The columns of `batch` in the order of the row's members. The batch outlives them.
template <class Row>
std::vector<ColumnSource> SourcesOf(const arrow::RecordBatch& batch, StringPool* pool) {
  std::vector<ColumnSource> sources;
  format::ForEachColumn<Row>([&](const format::ColumnDesc& desc, auto member) {
    using Value = ValueOf<Row, decltype(member)>;
    ColumnSource source;
    const int at = batch.schema()->GetFieldIndex(std::string(desc.name));
    if (at >= 0) {
      const arrow::Array& column = *batch.column(at);
      if constexpr (std::is_same_v<Value, std::string_view>) {
        source = TextSource(column, pool);
      } else if (column.type_id() == ArrowTypeOf<Value>::type::type_id) {
        source.array = &column;
      }
      source.nulls = column.null_count() > 0;
    }
    sources.push_back(std::move(source));
  });
  return sources;
}

/// Rows [from, to) of the batch into `rows`, which are those of them.
template <class Row>
void FillRows(const std::vector<ColumnSource>& sources, std::int64_t from, std::int64_t to,
              StringPool* pool, Row* rows) {
  auto source = sources.begin();
  format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
    using Value = ValueOf<Row, decltype(member)>;
    using Type = typename ArrowTypeOf<Value>::type;
    const ColumnSource& column = *source++;
    if (column.array == nullptr) return;
    const auto each = [&](auto value) {
      for (std::int64_t i = from; i < to; ++i) {
        if (column.nulls && column.array->IsNull(i)) continue;
        rows[i - from].*member = value(i);
      }
    };
    if constexpr (std::is_same_v<Value, std::string_view>) {
      if (column.indices != nullptr) {
        each([&](std::int64_t i) { return column.words[column.indices[i]]; });
        return;
      }
      const auto& array = static_cast<const arrow::StringArray&>(*column.array);
      std::string_view last;
      std::string_view last_interned = pool->Intern({});
      each([&](std::int64_t i) {
        const std::string_view text = array.GetView(i);
        // Most columns repeat their value: spare the look-up.
        if (text != last) {
          last = text;
          last_interned = pool->Intern(text);
        }
        return last_interned;
      });
    } else if constexpr (std::is_same_v<Value, bool>) {
      const auto& array = static_cast<const arrow::BooleanArray&>(*column.array);
      each([&](std::int64_t i) { return array.Value(i); });
    } else {
      const auto* const values =
          static_cast<const typename arrow::TypeTraits<Type>::ArrayType&>(*column.array)
              .raw_values();
      each([&](std::int64_t i) { return values[i]; });
    }
  });
}

std::shared_ptr<arrow::DataType> TypeOf(format::ColumnType type) {
  switch (type) {
    case format::ColumnType::kI32:
      return arrow::int32();
    case format::ColumnType::kI64:
      return arrow::int64();
    case format::ColumnType::kU32:
      return arrow::uint32();
    case format::ColumnType::kU64:
      return arrow::uint64();
    case format::ColumnType::kF64:
      return arrow::float64();
    case format::ColumnType::kBool:
      return arrow::boolean();
    case format::ColumnType::kStr:
      return arrow::utf8();
  }
  return arrow::null();
}

}  // namespace

std::shared_ptr<arrow::Schema> ArrowSchemaOf(format::TableId table) {
  arrow::FieldVector fields;
  for (const format::TableDesc& desc : format::kTables) {
    if (desc.id != table) continue;
    for (const format::ColumnDesc& column : desc.columns) {
      fields.push_back(arrow::field(std::string(column.name), TypeOf(column.type), false));
    }
  }
  return arrow::schema(std::move(fields));
}

arrow::Result<std::shared_ptr<arrow::RecordBatch>> RowsToArrow(const format::Rows& rows,
                                                               format::TableId table) {
  arrow::ArrayVector columns;
  arrow::Status status;
  std::int64_t count = 0;
  WithTable(rows, table, [&](const auto& of_table) {
    count = static_cast<std::int64_t>(of_table.size());
    status = BuildColumns(of_table, &columns);
  });
  ARROW_RETURN_NOT_OK(status);
  return arrow::RecordBatch::Make(ArrowSchemaOf(table), count, std::move(columns));
}

arrow::Status ArrowToRows(const arrow::RecordBatch& batch, format::TableId table, StringPool* pool,
                          format::Rows* out) {
  ARROW_RETURN_NOT_OK(batch.Validate());
  arrow::Status status;
  WithTable(*out, table, [&](auto& of_table) {
    using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
    const std::vector<ColumnSource> sources = SourcesOf<Row>(batch, pool);
    if (std::ranges::any_of(sources, &ColumnSource::damaged)) {
      status = arrow::Status::Invalid("an index beyond its dictionary");
      return;
    }
    of_table.reserve(of_table.size() + static_cast<std::size_t>(batch.num_rows()));
    // Columns go into rows: all of them for some rows, while those rows are in the cache.
    for (std::int64_t at = 0; at < batch.num_rows(); at += kRowsInCache) {
      const std::int64_t end = std::min(at + kRowsInCache, batch.num_rows());
      of_table.resize(of_table.size() + static_cast<std::size_t>(end - at));
      FillRows(sources, at, end, pool, of_table.data() + of_table.size() - (end - at));
    }
  });
  return status;
}

}  // namespace telltale::store
