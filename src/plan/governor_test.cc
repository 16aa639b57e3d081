// SPDX-License-Identifier: Apache-2.0
#include "plan/governor.h"

#include <gtest/gtest.h>

namespace telltale::plan {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// Steps of 20 ms; each costs `base_us`, and each that takes statistics `stats_us` more.
int RunSteps(Governor* governor, int steps, std::int64_t base_us, std::int64_t stats_us) {
  int decisions = 0;
  for (int i = 0; i < steps; ++i) {
    const bool stats = i % static_cast<int>(governor->interval()) == 0;
    decisions += governor->Add(20 * kMs, (base_us + (stats ? stats_us : 0)) * 1000) ? 1 : 0;
  }
  return decisions;
}

TEST(Governor, LeavesThePlanAloneInsideTheBudget) {
  Governor governor(0.01, 100);
  EXPECT_EQ(RunSteps(&governor, 20'000, 10, 5'000), 0);
  EXPECT_EQ(governor.interval(), 100U);
}

TEST(Governor, StretchesUntilTheCostIsInsideTheBudget) {
  Governor governor(0.01, 10);
  // 7 ms each 10 steps of 20 ms is 3.5 %; each 40 steps 0.88 %.
  EXPECT_GT(RunSteps(&governor, 20'000, 0, 7'000), 0);
  EXPECT_EQ(governor.interval(), 40U);
}

TEST(Governor, TakesTheIntervalBackWhenThereIsRoom) {
  Governor governor(0.01, 10);
  RunSteps(&governor, 20'000, 0, 7'000);
  RunSteps(&governor, 20'000, 0, 100);
  EXPECT_EQ(governor.interval(), 10U);
}

TEST(Governor, SettlesInsteadOfSwinging) {
  Governor governor(0.01, 10);
  RunSteps(&governor, 20'000, 0, 7'000);
  EXPECT_EQ(RunSteps(&governor, 100'000, 0, 7'000), 0);
}

TEST(Governor, WithoutStatisticsThereIsNothingToGovern) {
  Governor governor(0.01, 0);
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(governor.Add(20 * kMs, 100'000).has_value());
  EXPECT_EQ(governor.interval(), 0U);
}

/// How often it says that the budget cannot be kept in 1000 steps of 20 ms that cost so much.
int TimesExceeded(Governor* governor, std::int64_t probe_us) {
  int times = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto decision = governor->Add(20 * kMs, probe_us * 1000);
    times += decision && decision->exceeded ? 1 : 0;
  }
  return times;
}

TEST(Governor, SaysOnceThatThereIsNothingToStretch) {
  Governor governor(0.01, 0);
  EXPECT_EQ(TimesExceeded(&governor, 400), 1);
  EXPECT_EQ(TimesExceeded(&governor, 300), 0);
  EXPECT_EQ(TimesExceeded(&governor, 190), 0) << "hardly inside the budget";
  EXPECT_EQ(TimesExceeded(&governor, 300), 0) << "as it was";
  EXPECT_EQ(TimesExceeded(&governor, 20), 0);
  EXPECT_EQ(TimesExceeded(&governor, 300), 1) << "it was better between";
  EXPECT_EQ(governor.interval(), 0U);
}

TEST(Governor, SaysOnceThatTheWidestIntervalIsNotEnough) {
  Governor governor(0.01, 1);
  int stretched = 0;
  int exceeded = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto decision = governor.Add(20 * kMs, 400'000);  // 2 %, with statistics or without.
    if (!decision) continue;
    ++(decision->exceeded ? exceeded : stretched);
    EXPECT_TRUE(!decision->exceeded || decision->interval_steps == 1024) << i;
  }
  EXPECT_EQ(stretched, 10);
  EXPECT_EQ(exceeded, 1);
  EXPECT_EQ(governor.interval(), 1024U);
}

}  // namespace
}  // namespace telltale::plan
