// SPDX-License-Identifier: Apache-2.0
#include "store/group_columns.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "store/arrow_rows.h"

namespace telltale::store {
namespace {

constexpr std::size_t kRowsAtOnce = 512;  ///< Each column goes over them anew.

arrow::Result<std::shared_ptr<arrow::Array>> TextColumn(
    const std::shared_ptr<arrow::DataType>& type, std::shared_ptr<arrow::Buffer> numbers,
    std::size_t rows, const std::vector<std::string_view>& texts) {
  arrow::StringBuilder builder;
  for (const std::string_view text : texts) ARROW_RETURN_NOT_OK(builder.Append(text));
  std::shared_ptr<arrow::Array> dictionary;
  ARROW_RETURN_NOT_OK(builder.Finish(&dictionary));
  auto data = arrow::ArrayData::Make(type, static_cast<std::int64_t>(rows),
                                     {nullptr, std::move(numbers)}, /*null_count=*/0);
  data->dictionary = dictionary->data();
  return arrow::MakeArray(std::move(data));
}

}  // namespace

GroupColumns::GroupColumns(format::TableId table) : table_(table) {
  arrow::FieldVector fields = ArrowSchemaOf(table)->fields();
  values_.resize(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i]->type()->id() != arrow::Type::STRING) continue;
    values_[i].texts = std::make_unique<format::TextIndex>();
    fields[i] = fields[i]->WithType(arrow::dictionary(arrow::int32(), arrow::utf8()));
  }
  schema_ = arrow::schema(std::move(fields));
}

template <class Row>
void GroupColumns::TakeRows(const Row* rows, std::size_t count) {
  auto at = values_.begin();
  format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
    using Value = std::remove_cvref_t<decltype(rows->*member)>;
    using Stored =
        std::conditional_t<std::is_same_v<Value, std::string_view>, std::uint32_t,
                           std::conditional_t<std::is_same_v<Value, bool>, std::uint8_t, Value>>;
    Values& values = *at++;
    const std::size_t begin = values.bytes.size();
    values.bytes.resize(begin + count * sizeof(Stored));
    std::byte* to = values.bytes.data() + begin;
    for (const Row* row = rows; row != rows + count; ++row, to += sizeof(Stored)) {
      Stored stored{};
      if constexpr (std::is_same_v<Value, std::string_view>) {
        stored = values.texts->Of(row->*member);
      } else {
        stored = row->*member;
      }
      std::memcpy(to, &stored, sizeof stored);
    }
  });
  rows_ += count;
}

std::size_t GroupColumns::Take(const format::Rows& rows, std::size_t from, std::size_t most) {
  std::size_t taken = 0;
  format::ForEachTable(rows, [&](const auto& of_table) {
    using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
    if (Row::kTable != table_ || from >= of_table.size()) return;
    const std::size_t end = from + std::min(most, of_table.size() - from);
    for (std::size_t at = from; at < end; at += kRowsAtOnce) {
      TakeRows(of_table.data() + at, std::min(kRowsAtOnce, end - at));
    }
    taken = end - from;
  });
  return taken;
}

arrow::Result<std::shared_ptr<arrow::Array>> GroupColumns::Column(int column) const {
  const std::shared_ptr<arrow::DataType>& type = schema_->field(column)->type();
  const Values& values = values_[static_cast<std::size_t>(column)];
  if (type->id() == arrow::Type::BOOL) {
    arrow::BooleanBuilder builder;
    ARROW_RETURN_NOT_OK(
        builder.AppendValues(reinterpret_cast<const std::uint8_t*>(values.bytes.data()),
                             static_cast<std::int64_t>(rows_)));
    return builder.Finish();
  }
  auto buffer = arrow::Buffer::Wrap(values.bytes.data(), values.bytes.size());
  if (values.texts) return TextColumn(type, std::move(buffer), rows_, values.texts->texts());
  return arrow::MakeArray(arrow::ArrayData::Make(type, static_cast<std::int64_t>(rows_),
                                                 {nullptr, std::move(buffer)}, /*null_count=*/0));
}

void GroupColumns::Clear() {
  for (Values& values : values_) {
    values.bytes.clear();
    if (values.texts) values.texts->Clear();
  }
  rows_ = 0;
}

}  // namespace telltale::store
