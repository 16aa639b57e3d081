// SPDX-License-Identifier: Apache-2.0
#include "store/arrow_rows.h"

#include <arrow/api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

template <class Row>
void FillRows(const arrow::RecordBatch& batch, StringPool* pool, std::vector<Row>* rows) {
  const std::size_t begin = rows->size();
  const auto n = static_cast<std::size_t>(batch.num_rows());
  rows->resize(begin + n);
  format::ForEachColumn<Row>([&](const format::ColumnDesc& desc, auto member) {
    using Value = ValueOf<Row, decltype(member)>;
    using Type = typename ArrowTypeOf<Value>::type;
    const auto column = batch.GetColumnByName(std::string(desc.name));
    if (column == nullptr || column->type_id() != Type::type_id) return;
    const auto& array = static_cast<const typename arrow::TypeTraits<Type>::ArrayType&>(*column);
    std::string_view last;
    std::string_view last_interned;
    for (std::size_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (array.IsNull(at)) continue;
      if constexpr (std::is_same_v<Value, std::string_view>) {
        const std::string_view text = array.GetView(at);
        // Most columns repeat their value: spare the look-up.
        if (text != last || i == 0) {
          last = text;
          last_interned = pool->Intern(text);
        }
        (*rows)[begin + i].*member = last_interned;
      } else {
        (*rows)[begin + i].*member = array.Value(at);
      }
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
  WithTable(*out, table, [&](auto& of_table) {
    of_table.reserve(of_table.size() + static_cast<std::size_t>(batch.num_rows()));
    // Columns go into rows: all of them for some rows, while those rows are in the cache.
    for (std::int64_t at = 0; at < batch.num_rows(); at += kRowsInCache) {
      FillRows(*batch.Slice(at, kRowsInCache), pool, &of_table);
    }
  });
  return arrow::Status::OK();
}

}  // namespace telltale::store
