// SPDX-License-Identifier: Apache-2.0
#include "analysis/columns.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace telltale::analysis {
namespace {

TEST(ColumnsTest, TheEndsOf64BitsMakeTwoColumns) {
  // What a producer gave a reader to write out of bounds with.
  for (const bool smallest_first : {true, false}) {
    Columns columns;
    columns.Add(smallest_first ? std::numeric_limits<std::int64_t>::min()
                               : std::numeric_limits<std::int64_t>::max(),
                1);
    columns.Add(smallest_first ? std::numeric_limits<std::int64_t>::max()
                               : std::numeric_limits<std::int64_t>::min(),
                2);
    columns.Add(0, 3);
    std::uint64_t count = 0;
    for (const Column& column : columns.columns()) count += column.count;
    EXPECT_EQ(count, 3U);
    EXPECT_LE(columns.columns().size(), 512U);
  }
}

TEST(ColumnsTest, MergedHoweverOftenAColumnStillTakesValues) {
  Columns columns;
  columns.Add(0, 1);
  std::uint64_t added = 1;
  // Each value far away makes the columns twice as wide, and the first two of them one.
  for (int k = 0; k < 44; ++k) {
    const std::int64_t x = std::int64_t{1} << k;
    for (int i = 0; i < 31; ++i) columns.Add(x, 1);
    columns.Add(512 * x, 1);
    columns.Add(0, 1);
    added += 33;
  }
  std::uint64_t count = 0;
  for (const Column& column : columns.columns()) {
    count += column.count;
    EXPECT_LE(column.kept.size(), 32U);
    EXPECT_GT(column.stride, 0U);
  }
  EXPECT_EQ(count, added);
}

TEST(ColumnsTest, TimesOfTheWholeBoundAreToldApart) {
  // 2043 and 2116: both are times.
  Columns columns;
  for (const std::int64_t x : {std::int64_t{1} << 61, format::kTimeBound.most}) columns.Add(x, 1);
  EXPECT_EQ(columns.begin(), std::int64_t{1} << 61);
  EXPECT_EQ(columns.columns().front().count, 1U);
  EXPECT_EQ(columns.columns().back().count, 1U);
}

TEST(ColumnsTest, APointBeforeTheFirstMakesRoom) {
  Columns columns(4);
  for (const std::int64_t x : {10, 11, 8, 1'000, -1'000}) columns.Add(x, static_cast<double>(x));
  std::uint64_t count = 0;
  for (const Column& column : columns.columns()) count += column.count;
  EXPECT_EQ(count, 5U);
  EXPECT_LE(columns.columns().size(), 4U);
  EXPECT_LE(columns.begin(), -1'000);
}

}  // namespace
}  // namespace telltale::analysis
