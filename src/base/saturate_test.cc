// SPDX-License-Identifier: Apache-2.0
#include "base/saturate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace telltale {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

TEST(SaturateTest, IntegersStayAtTheEnds) {
  EXPECT_EQ(SaturatingAdd(kMost, 1), kMost);
  EXPECT_EQ(SaturatingAdd(kLeast, -1), kLeast);
  EXPECT_EQ(SaturatingSub(kLeast, 1), kLeast);
  EXPECT_EQ(SaturatingSub(0, kLeast), kMost);
  EXPECT_EQ(SaturatingMul(kLeast, -1), kMost);
  EXPECT_EQ(SaturatingMul(kMost, -2), kLeast);
  EXPECT_EQ(SaturatingMul(-3, 4), -12);
  EXPECT_EQ(Apart(kLeast, kMost), kMost);
}

TEST(SaturateTest, DoublesBecomeTheNearestIntegerThereIs) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double large : {9223372036854775808.0, 1e300, inf}) {
    EXPECT_EQ(SaturatingCast(large), kMost) << large;
    EXPECT_EQ(SaturatingCast(-large), kLeast) << large;
    EXPECT_EQ(SaturatingRound(large), kMost) << large;
    EXPECT_EQ(SaturatingRound(-large), kLeast) << large;
  }
  EXPECT_EQ(SaturatingCast(std::nan("")), 0);
  EXPECT_EQ(SaturatingRound(std::nan("")), 0);
  EXPECT_EQ(SaturatingCast(-2.9), -2);
  for (const double value : {0.0, 0.49999999999999994, 0.5, 1.5, 2.5, -0.5, -1.49, -1e15, 1e18,
                             4503599627370495.5, 9223372036854774784.0}) {
    EXPECT_EQ(SaturatingRound(value), std::llround(value)) << value;
  }
}

TEST(SaturateTest, ASumAndWhatIsReckonedWithItStayAtTheEnds) {
  Sum sum = kMost;
  ++sum;
  EXPECT_EQ(sum, kMost);
  EXPECT_EQ(sum + sum, kMost);
  EXPECT_EQ(1 + sum, kMost);
  EXPECT_EQ(Sum(kLeast) - 1, kLeast);
  EXPECT_EQ(sum * 2, kMost);
  EXPECT_EQ(Sum(std::numeric_limits<std::uint64_t>::max()), kMost);
  EXPECT_GT(sum, 5);
  EXPECT_EQ(std::max<Sum>(0, Sum(3) - 5), 0);
  EXPECT_EQ(static_cast<double>(Sum(7)) / 2, 3.5);
  // Plain arithmetic would go on beyond the ends.
  static_assert(!std::is_convertible_v<Sum, std::int64_t>);
  static_assert(!std::is_convertible_v<Sum, double>);
  static_assert(!std::is_convertible_v<double, Sum>);
}

}  // namespace
}  // namespace telltale
