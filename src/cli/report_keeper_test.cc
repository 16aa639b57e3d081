// SPDX-License-Identifier: Apache-2.0
// When reports of a run that goes on are written.
#include "cli/report_keeper.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "report/html.h"

namespace telltale::cli {
namespace {

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

TEST(ReportKeeperTest, WhatAKilledWriterLeftIsRemoved) {
  namespace fs = std::filesystem;
  const fs::path run = fs::path(::testing::TempDir()) / ("keeper-" + std::to_string(::getpid()));
  fs::create_directories(run);
  // No pid is as large (PID_MAX_LIMIT).
  const fs::path dead = report::PartialPath(run / "report.html", 1 << 22);
  const fs::path alive = report::PartialPath(run / "report.html", ::getpid());
  for (const fs::path& path : {dead, alive, run / "report.html", run / "report.html.5x.tmp"}) {
    std::ofstream(path) << "half";
  }
  const ReportKeeper keeper("telltale", run);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(run / "report.html"));
  EXPECT_TRUE(fs::exists(run / "report.html.5x.tmp"));
  fs::remove_all(run);
}

}  // namespace
}  // namespace telltale::cli
