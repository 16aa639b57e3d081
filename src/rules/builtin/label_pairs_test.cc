// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/label_pairs.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

namespace telltale::rules {
namespace {

using Classes = std::vector<std::int32_t>;

Samples Of(Shape shape, std::vector<double> elements) {
  return {std::move(shape), std::move(elements)};
}

TEST(ClassesOf, WholeNumbersAreClassesAndNegativeOnesArePadding) {
  EXPECT_EQ(ClassesOf(Of({4}, {0, 2, -100, 1})), (Classes{0, 2, kNoClass, 1}));
  EXPECT_FALSE(ClassesOf(Of({2}, {0.5, 1})).has_value());
  EXPECT_FALSE(ClassesOf(Of({2}, {1, 123456})).has_value());
}

TEST(ClassesOf, OneHotRowsAreOneClassEach) {
  EXPECT_EQ(ClassesOf(Of({2, 3}, {0, 0, 1, 1, 0, 0})), (Classes{2, 0}));
  // Two labels a sample are no one-hot row.
  EXPECT_EQ(ClassesOf(Of({2, 2}, {1, 1, 0, 1})), (Classes{1, 1, 0, 1}));
}

TEST(PredictedClasses, TheLargestScoreAlongTheDimensionOfTheClasses) {
  EXPECT_EQ(PredictedClasses(Of({2, 3}, {0, 5, 1, 9, 5, 1}), {1, 0}, 2), (Classes{1, 0}));
  // (samples, classes, places) with labels (samples, places).
  EXPECT_EQ(PredictedClasses(Of({1, 3, 2}, {9, 0, 0, 9, 0, 0}), {0, 1}, 1), (Classes{0, 1}));
  // (samples, places, classes).
  EXPECT_EQ(PredictedClasses(Of({1, 2, 3}, {9, 0, 0, 0, 0, 9}), {0, 2}, 1), (Classes{0, 2}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(PredictedClasses(Of({1, 2}, {nan, 1}), {0}, 1), (Classes{kNoClass}));
}

TEST(PredictedClasses, ProbabilitiesAndScoresOfTwoClasses) {
  EXPECT_EQ(PredictedClasses(Of({3}, {0.2, 0.7, 0.5}), {0, 1, 0}, 3), (Classes{0, 1, 0}));
  EXPECT_EQ(PredictedClasses(Of({2, 1}, {-3.5, 2}), {0, 1}, 2), (Classes{0, 1}));
  EXPECT_EQ(PredictedClasses(Of({2}, {3, 4}), {3, 3}, 2), (Classes{3, 4}));
  EXPECT_FALSE(PredictedClasses(Of({2}, {1.5, 2.5}), {3, 2}, 2).has_value());
}

TEST(PredictedClasses, WhatFitsNoLabelsIsRefused) {
  EXPECT_FALSE(PredictedClasses(Of({2, 3}, {1, 2, 3, 4, 5, 6}), {1, 1, 1, 1}, 2).has_value());
  EXPECT_FALSE(PredictedClasses(Of({1, 3}, {1, 2, 3}), {1, 1}, 2).has_value());
}

}  // namespace
}  // namespace telltale::rules
