// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/units.h"

#include <gtest/gtest.h>

#include <vector>

namespace telltale::rules {
namespace {

bool Above(double value) { return value > 0; }

TEST(UnitsTest, ShapesAreReadAndRefused) {
  EXPECT_EQ(*ShapeOf("[2, 3]"), (Shape{2, 3}));
  EXPECT_TRUE(ShapeOf("[]")->empty());
  EXPECT_FALSE(ShapeOf("[-1]"));
  EXPECT_FALSE(ShapeOf("2, 3"));
  EXPECT_FALSE(ShapeOf(""));
  EXPECT_EQ(ElementsOf({}), 1U);
  EXPECT_EQ(ElementsOf({2, 0, 3}), 0U);
  EXPECT_EQ(ElementsOf({std::size_t{1} << 40U, std::size_t{1} << 40U}), 0U);
}

TEST(UnitsTest, SamplesAddUpOverCaptures) {
  UnitActivity activity;
  for (int capture = 0; capture < 4; ++capture) {
    EXPECT_FALSE(activity.Take(10, 0.1));
    activity.Add(std::vector<double>{0, 1, 0, capture == 3 ? 1.0 : 0.0, 0, 2}, {3, 2}, false,
                 Above);
  }
  const auto counted = activity.Take(10, 0.1);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->samples, 12U);
  EXPECT_EQ(counted->units, 2U);
  EXPECT_EQ(counted->inactive, 1U);
  EXPECT_FALSE(activity.Take(1, 0.1)) << "it begins anew";
}

TEST(UnitsTest, ASampleThatIsNotWholeIsLeftOut) {
  UnitActivity activity;
  activity.Add(std::vector<double>{1, 1, 1}, {2, 2}, false, Above);
  const auto counted = activity.Take(1, 0.5);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->samples, 1U);
  EXPECT_EQ(counted->inactive, 0U);
}

TEST(UnitsTest, SequencesOfAnyLengthAreCountedByFeature) {
  UnitActivity activity;
  activity.Add(std::vector<double>{0, 1, 0, 1}, {1, 2, 2}, false, Above);
  activity.Add(std::vector<double>{0, 1, 0, 1, 0, 0}, {1, 3, 2}, false, Above);
  const auto counted = activity.Take(2, 0.5);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->samples, 2U);
  EXPECT_EQ(counted->units, 2U);
  EXPECT_EQ(counted->inactive, 1U);
}

TEST(UnitsTest, ChannelsOfAOneDimensionalConvolutionAreSeen) {
  UnitActivity activity;
  // (1, 4, 2): the channels 1 and 3 are dead, each place is active.
  activity.Add(std::vector<double>{1, 1, 0, 0, 1, 1, 0, 0}, {1, 4, 2}, false, Above);
  const auto counted = activity.Take(1, 0.5);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->units, 4U);
  EXPECT_EQ(counted->inactive, 2U);
}

TEST(UnitsTest, ScalarsAndEmptyTensorsHarmNothing) {
  UnitActivity activity;
  activity.Add(std::vector<double>{}, {0, 4}, false, Above);
  activity.Add(std::vector<double>{}, {4, 0}, false, Above);
  activity.Add(std::vector<double>{1}, {}, false, Above);
  activity.Add(std::vector<double>{1, 0}, {2}, false, Above);
  const auto counted = activity.Take(1, 0.1);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->units, 1U);
  EXPECT_EQ(counted->inactive, 0U);
}

TEST(UnitsTest, NoMoreIsReadThanIsNeeded) {
  EXPECT_EQ(ElementsToRead({}), 0U);
  EXPECT_EQ(ElementsToRead({0, 5}), 0U);
  EXPECT_EQ(ElementsToRead({32, 10}), 320U);
  EXPECT_EQ(ElementsToRead({256, 1000, 100}), std::size_t{16} * 100000);
  EXPECT_EQ(ElementsToRead({2, std::size_t{1} << 30U}), 0U);
}

}  // namespace
}  // namespace telltale::rules
