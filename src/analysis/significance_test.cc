// SPDX-License-Identifier: Apache-2.0
#include "analysis/significance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace telltale::analysis {
namespace {

TEST(MannWhitneyTest, IsExactForFewValues) {
  // scipy.stats.mannwhitneyu([1, 2, 3], [4, 5, 6], method="exact"): U = 0, p = 0.1.
  EXPECT_NEAR(MannWhitney({1, 2, 3}, {4, 5, 6}), 0.1, 1e-12);
  // The two extremes of C(8, 4) = 70 orders.
  EXPECT_NEAR(MannWhitney({1, 2, 3, 4}, {5, 6, 7, 8}), 2.0 / 70, 1e-12);
  EXPECT_NEAR(MannWhitney({1, 4}, {2, 3}), 1, 1e-12);
}

TEST(MannWhitneyTest, ApproximatesWithTies) {
  // m = n = 3, ranks of a: 1, 2.5, 4; U = 1.5; variance = 9/12 (7 − (2³ − 2)/30) = 5.1.
  const double z = (4.5 - 1.5 - 0.5) / std::sqrt(5.1);
  EXPECT_NEAR(MannWhitney({1, 2, 3}, {2, 4, 5}), std::erfc(z / std::sqrt(2.0)), 1e-12);
}

TEST(MannWhitneyTest, IsWiderWhereNeighboursCorrelate) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<double> b = {9, 10, 11, 12, 13, 14, 15, 16};
  EXPECT_LT(MannWhitney(a, b), 0.001);
  // m n / 12 (m + n + 1) = 90.67, four times as much.
  const double z = (32 - 0.5) / std::sqrt(4 * 64.0 / 12 * 17);
  EXPECT_NEAR(MannWhitney(a, b, 4), std::erfc(z / std::sqrt(2.0)), 1e-12);
}

TEST(InflationTest, IsOfWhatIsLeftOfALine) {
  std::vector<double> line;
  std::vector<double> apart;
  std::vector<double> wave;
  for (int i = 0; i < 12; ++i) {
    line.push_back(100 + 3.0 * i);
    apart.push_back(100 + 3.0 * i + (i % 2 == 0 ? 1 : -1));
    wave.push_back(100 + 10 * std::sin(i * 2 * 3.14159265 / 12));
  }
  EXPECT_EQ(Inflation(line), 1);
  EXPECT_EQ(Inflation(apart), 1);
  EXPECT_GT(Inflation(wave), 2);
  EXPECT_EQ(Inflation({1, 2, 3}), 1);
  EXPECT_EQ(Inflation(std::vector<double>(10, 5)), 1);
}

TEST(MannWhitneyTest, SaysNothingOfNothing) {
  EXPECT_EQ(MannWhitney({}, {1}), 1);
  EXPECT_EQ(MannWhitney({2, 2, 2}, {2, 2}), 1);
}

TEST(CliffsDeltaTest, CountsPairs) {
  EXPECT_EQ(CliffsDelta({1, 2}, {3, 4}), 1);
  EXPECT_EQ(CliffsDelta({3, 4}, {1, 2}), -1);
  EXPECT_EQ(CliffsDelta({1, 2}, {1, 2}), 0);
  EXPECT_EQ(CliffsDelta({}, {1}), 0);
}

TEST(BlocksTest, GrowUntilNeighboursDoNotResembleEachOther) {
  std::vector<double> independent;
  std::vector<double> slow;
  for (int i = 0; i < 64; ++i) {
    independent.push_back(i % 2 == 0 ? 1 : 2);
    slow.push_back((i / 8) % 2 == 0 ? 1 : 2);  // Each level lasts for eight.
  }
  EXPECT_EQ(Blocks(independent, 64, 8).size(), 64U);
  EXPECT_LE(Blocks(slow, 64, 8).size(), 16U);
  EXPECT_GE(Blocks(slow, 64, 8).size(), 8U);
  EXPECT_EQ(Blocks(std::vector<double>(1000, 1), 64, 8).size(), 62U);  // 16 a block.
  EXPECT_EQ(Blocks({1, 2, 3}, 64, 8).size(), 3U);
}

TEST(RatioIntervalTest, HoldsTheRatioAndIsTheSameEachTime) {
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 40; ++i) {
    a.push_back(100 + i % 7);
    b.push_back(120 + i % 5);
  }
  const Interval one = RatioInterval(a, b);
  EXPECT_LE(one.low, 122.0 / 103);
  EXPECT_GE(one.high, 122.0 / 103);
  EXPECT_GT(one.low, 1.1);
  EXPECT_LT(one.high, 1.3);
  EXPECT_EQ(one.low, RatioInterval(a, b).low);
}

TEST(HolmTest, CorrectsTogether) {
  const std::vector<double> p = Holm({0.01, 0.04, 0.03});
  EXPECT_NEAR(p[0], 0.03, 1e-12);
  EXPECT_NEAR(p[2], 0.06, 1e-12);
  EXPECT_NEAR(p[1], 0.06, 1e-12);  // Never below that of a smaller one.
}

}  // namespace
}  // namespace telltale::analysis
