// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <random>
#include <vector>

namespace telltale::rules {
namespace {

TEST(FewAsIntTest, WhatNoMachineHasStandsAtTheEnds) {
  EXPECT_EQ(FewAsInt(7.9), 7);
  EXPECT_EQ(FewAsInt(-0.5), 0);
  EXPECT_EQ(FewAsInt(1e300), 100'000);
  EXPECT_EQ(FewAsInt(-1e300), -100'000);
  EXPECT_EQ(FewAsInt(std::nan("")), 0);
}

TEST(SortedValuesTest, MediansAreThoseOfSortingAllOfThem) {
  std::mt19937 random(1);
  for (const std::size_t most : {1, 2, 5, 8, 60, 201}) {
    // Some are equal, as times of a coarse clock are.
    std::normal_distribution<double> noise(0, most < 10 ? 2 : 30);
    std::deque<double> window;
    SortedValues sorted;
    EXPECT_EQ(sorted.Median(), 0);
    EXPECT_EQ(sorted.MedianDistance(3), 0);
    for (int i = 0; i < 500; ++i) {
      const double value = i % 3 == 0 ? std::round(noise(random)) : noise(random);
      window.push_back(value);
      sorted.Insert(value);
      if (window.size() > most) {
        sorted.Erase(window.front());
        window.pop_front();
      }
      std::vector<double> values(window.begin(), window.end());
      EXPECT_EQ(sorted.Largest(), *std::max_element(values.begin(), values.end()));
      const double median = MedianOf(values);
      EXPECT_EQ(sorted.Median(), median);
      for (double& v : values) v = std::abs(v - median);
      EXPECT_EQ(sorted.MedianDistance(median), MedianOf(values));
    }
    sorted.Clear();
    sorted.Insert(4);
    EXPECT_EQ(sorted.Median(), 4);
  }
}

TEST(StandsForAllTest, FewAreAllTakenAndOfManySomeThatFollowNoPattern) {
  for (std::size_t n = 0; n < 100; ++n) EXPECT_TRUE(StandsForAll(n, 100, 100));
  // Of each second, third and tenth as many as of all.
  constexpr std::size_t kAll = 1'000'000;
  constexpr std::size_t kMost = 50'000;
  for (const std::size_t each : {1, 2, 3, 10}) {
    std::size_t taken = 0;
    for (std::size_t n = 0; n < kAll; n += each) taken += StandsForAll(n, kAll, kMost) ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(taken * each), kMost, 0.1 * kMost) << each;
  }
  EXPECT_TRUE(StandsForAll(0, kAll, 1)) << "at least one";
}

}  // namespace
}  // namespace telltale::rules
