// SPDX-License-Identifier: Apache-2.0
// When windows of a run that goes on are imported.
#include "cli/windows_keeper.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::cli {
namespace {

TEST(WindowsScheduleTest, NothingIsDueUntilAFileHasChanged) {
  WindowsSchedule schedule;
  EXPECT_FALSE(schedule.Due(1000 * kSecond));
  EXPECT_FALSE(schedule.pending());
  schedule.Changed(1000 * kSecond);
  EXPECT_TRUE(schedule.pending());
  EXPECT_FALSE(schedule.Due(1001 * kSecond - 1));
  EXPECT_TRUE(schedule.Due(1001 * kSecond));
}

TEST(WindowsScheduleTest, WhatChangesMeanwhileIsDoneAfterAPauseOfFiftyTimesTheWork) {
  WindowsSchedule schedule;
  schedule.Changed(0);
  schedule.Started();
  EXPECT_FALSE(schedule.pending());
  schedule.Changed(2 * kSecond);
  schedule.Done(3 * kSecond, kSecond, false);
  EXPECT_FALSE(schedule.Due(53 * kSecond - 1));
  EXPECT_TRUE(schedule.Due(53 * kSecond));
  schedule.Started();
  schedule.Done(54 * kSecond, kSecond / 1000, false);
  schedule.Changed(60 * kSecond);
  EXPECT_TRUE(schedule.Due(61 * kSecond));
}

TEST(WindowsScheduleTest, WhatIsLeftIsTriedLessAndLessOften) {
  WindowsSchedule schedule;
  std::int64_t now = 0;
  for (const std::int64_t pause : {2, 4, 8, 16, 32, 64, 128, 256, 512, 512}) {
    schedule.Started();
    schedule.Done(now, 0, true);
    EXPECT_FALSE(schedule.Due(now + pause * kSecond - 1)) << pause;
    EXPECT_TRUE(schedule.Due(now + pause * kSecond)) << pause;
    now += pause * kSecond;
  }
  schedule.Started();
  schedule.Done(now, 0, false);
  EXPECT_FALSE(schedule.pending());
}

TEST(WindowsScheduleTest, OneThatCostMuchDoesNotStopForEver) {
  WindowsSchedule schedule;
  schedule.Done(0, 3600 * kSecond, false);
  schedule.Changed(kSecond);
  EXPECT_TRUE(schedule.Due(WindowsSchedule::kLongestPauseNs));
}

}  // namespace
}  // namespace telltale::cli
