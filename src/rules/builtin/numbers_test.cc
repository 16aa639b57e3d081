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

}  // namespace
}  // namespace telltale::rules
