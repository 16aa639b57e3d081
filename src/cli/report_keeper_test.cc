// SPDX-License-Identifier: Apache-2.0
// When reports of a run that goes on are written.
#include "cli/report_keeper.h"

#include <gtest/gtest.h>

namespace telltale::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(ReportScheduleTest, SoonAtFirstThenEachMinute) {
  std::int64_t now = 1000 * kSecond;
  ReportSchedule schedule(now);
  EXPECT_FALSE(schedule.Due(now + 4 * kSecond));
  for (const std::int64_t pause : {5, 10, 20, 40, 60, 60}) {
    EXPECT_FALSE(schedule.Due(now + pause * kSecond - 1));
    now += pause * kSecond;
    EXPECT_TRUE(schedule.Due(now));
    schedule.Done(now, kSecond / 50);
  }
}

TEST(ReportScheduleTest, ADearReportIsWrittenLessOften) {
  ReportSchedule schedule(0);
  schedule.Done(0, 3 * kSecond);
  EXPECT_FALSE(schedule.Due(600 * kSecond - 1));
  EXPECT_TRUE(schedule.Due(600 * kSecond));
}

}  // namespace
}  // namespace telltale::cli
