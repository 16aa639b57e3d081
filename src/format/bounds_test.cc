// SPDX-License-Identifier: Apache-2.0
#include "format/bounds.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace telltale::format {
namespace {

template <class Row>
std::vector<std::string> OutOf(const Row& row) {
  std::vector<std::string> names;
  ForEachOutOfBounds(row, [&](const ColumnDesc& column, auto) { names.emplace_back(column.name); });
  return names;
}

/// A value of the column, where its type has it: whether the row may have it.
template <class Row, class Member>
void Expect(const ColumnDesc& column, Member member, __int128 value, bool in) {
  using Value = std::remove_cvref_t<decltype(Row{}.*member)>;
  if (value < std::numeric_limits<Value>::min() || value > std::numeric_limits<Value>::max())
    return;
  Row row{};
  row.*member = static_cast<Value>(value);
  EXPECT_EQ(InBounds(row), in) << column.name << " of table " << static_cast<int>(Row::kTable);
  EXPECT_EQ(OutOf(row),
            in ? std::vector<std::string>() : std::vector<std::string>{std::string(column.name)});
}

template <class Row>
void CheckEnds() {
  EXPECT_TRUE(InBounds(Row{}));
  ForEachColumn<Row>([](const ColumnDesc& column, auto member) {
    using Value = std::remove_cvref_t<decltype(Row{}.*member)>;
    if constexpr (kIsBounded<Value>) {
      Expect<Row>(column, member, column.least, true);
      Expect<Row>(column, member, column.most, true);
      Expect<Row>(column, member, __int128{column.least} - 1, false);
      Expect<Row>(column, member, __int128{column.most} + 1, false);
    }
  });
}

TEST(BoundsTest, EveryColumnTakesItsEndsAndNothingBeyond) {
  Rows rows;
  ForEachTable(rows, [](const auto& table) {
    CheckEnds<typename std::remove_cvref_t<decltype(table)>::value_type>();
  });
}

TEST(BoundsTest, DifferencesOfTimesAndEndsOfIntervalsStayWithin64Bits) {
  std::int64_t result = 0;
  EXPECT_FALSE(__builtin_sub_overflow(kTimeBound.most, kTimeBound.least, &result));
  EXPECT_FALSE(__builtin_add_overflow(kTimeBound.most, kLengthBound.most, &result));
  EXPECT_FALSE(__builtin_sub_overflow(kTimeBound.least, kLengthBound.most, &result));
}

TEST(BoundsTest, AWatermarkIsATimeOrNoneYet) {
  EXPECT_TRUE(IsWatermark(std::numeric_limits<std::int64_t>::min()));
  EXPECT_TRUE(IsWatermark(0));
  EXPECT_FALSE(IsWatermark(std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(IsWatermark(std::numeric_limits<std::int64_t>::min() + 1));
}

}  // namespace
}  // namespace telltale::format
