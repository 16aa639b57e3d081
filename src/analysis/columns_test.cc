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
