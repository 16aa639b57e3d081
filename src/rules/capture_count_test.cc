// SPDX-License-Identifier: Apache-2.0
#include "rules/capture_count.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace telltale::rules {
namespace {

constexpr char kPlan[] = R"({"plan": {"collections": {
    "gradients": {"take": ["statistics"], "train": {"interval": 100}},
    "labels": {"take": ["values"], "interval": 10}}}})";

/// A run of one process whose series are numbered as they are made.
struct Fed {
  CaptureCount count;
  std::vector<Series> series;

  void Plan(std::string_view data) {
    format::EventRow row;
    row.kind = "plan";
    row.data = data;
    count.See({0, 0, format::TableId::kEvents, &row}, kNoSeries);
  }
  void Steps(std::int64_t from, std::int64_t to, std::int32_t pid = 7) {
    for (std::int64_t step = from; step < to; ++step) {
      format::StepRow row;
      row.mode = "TRAIN";
      row.step = step;
      row.pid = pid;
      count.See({0, 0, format::TableId::kSteps, &row}, kNoSeries);
    }
  }
  void Statistics(const std::string& collection, const std::vector<std::int64_t>& steps,
                  std::int32_t pid = 7) {
    const auto id = static_cast<std::uint32_t>(series.size());
    series.push_back({id, format::TableId::kStatistics, "x", collection, "TRAIN", 0, pid, 0});
    for (const std::int64_t step : steps) {
      format::StatisticRow row;
      row.step = step;
      count.See({0, 0, format::TableId::kStatistics, &row}, id);
    }
  }
  std::optional<Captures> Of(const std::vector<Need>& needs) const {
    std::vector<const Series*> all;
    for (const Series& one : series) all.push_back(&one);
    return count.Of(needs, all);
  }
};

const std::vector<Need> kGradients = {{"A", "gradients", "", "statistics", 100}};

TEST(CaptureCount, ComparesWhatCameWithWhatThePlanHad) {
  Fed run;
  run.Plan(kPlan);
  run.Statistics("gradients", {0, 800});
  run.Steps(0, 1200);
  const auto captures = run.Of(kGradients);
  ASSERT_TRUE(captures.has_value());
  EXPECT_EQ(captures->Words(), "2 of 12 captures");
  EXPECT_TRUE(captures->TooFew());
}

TEST(CaptureCount, AllThatWasPlannedIsEnough) {
  Fed run;
  run.Plan(kPlan);
  // One tensor came in each capture, another seldom: a layer that is frozen now and then.
  run.Statistics("gradients", {0, 100, 200, 300, 400});
  run.Statistics("gradients", {0});
  run.Steps(0, 500);
  EXPECT_FALSE(run.Of(kGradients)->TooFew());
}

TEST(CaptureCount, OneThatIsMissingProvesNothing) {
  EXPECT_FALSE((Captures{1, 2}.TooFew()));
  EXPECT_TRUE((Captures{1, 3}.TooFew()));
  EXPECT_FALSE((Captures{12, 20}.TooFew()));
  EXPECT_TRUE((Captures{11, 20}.TooFew()));
}

TEST(CaptureCount, WhatNoPlanHasOrNoModelGivesIsNoPart) {
  Fed run;
  run.Plan(kPlan);
  run.Statistics("gradients", {0, 100, 200});
  run.Steps(0, 300);
  EXPECT_FALSE(run.Of({{"A", "outputs", "", "statistics", 100}}).has_value());
  EXPECT_FALSE(run.Of({{"A", "labels", "", "values", 10}}).has_value()) << "a model without labels";
  EXPECT_FALSE(run.Of({{"A", "gradients", "", "histogram", 100}}).has_value());
  EXPECT_FALSE(Fed().Of(kGradients).has_value());
}

TEST(CaptureCount, AnEditCountsFromItsStepsOn) {
  Fed run;
  run.Plan(R"({"plan": {"collections": {}}})");
  run.Steps(0, 1000);
  run.Plan(kPlan);
  run.Statistics("gradients", {1000, 1100});
  run.Steps(1000, 1200);
  EXPECT_EQ(run.Of(kGradients)->Words(), "2 of 2 captures");
}

TEST(CaptureCount, ARuleNeedsNoMoreThanItsOwnInterval) {
  Fed run;
  run.Plan(R"({"plan": {"collections": {"all": {"take": ["statistics"], "interval": 1}}}})");
  run.Statistics("gradients", {0, 128, 256, 384, 512});
  run.Steps(0, 600);
  EXPECT_EQ(run.Of(kGradients)->Words(), "5 of 6 captures");
}

TEST(CaptureCount, OfSeveralProcessesTheOneWithTheLeastPartCounts) {
  Fed run;
  run.Plan(kPlan);
  run.Statistics("gradients", {0, 100, 200, 300}, 7);
  run.Statistics("gradients", {0}, 8);
  run.Steps(0, 400, 7);
  run.Steps(0, 400, 8);
  EXPECT_EQ(run.Of(kGradients)->Words(), "1 of 4 captures");
}

TEST(CaptureCount, TimesOfAPlanAreReadAsItSaysThem) {
  Fed run;
  run.Plan(R"({"plan": {"collections": {"gradients": {"take": ["statistics"],
      "train": {"interval": 10, "start": 20, "end": 50, "steps": [3, 90]}}}}})");
  run.Statistics("gradients", {3, 20, 30, 40, 90});
  run.Steps(0, 100);
  EXPECT_EQ(run.Of({{"A", "gradients", "", "statistics", 1}})->Words(), "5 of 5 captures");
  run.Plan(R"({"plan": {"collections": {"gradients": {"interval": 10, "end": 0}}}})");
  run.Plan("no JSON");
  run.Plan(R"({"plan": {"collections": {"gradients": 7}}})");
  run.Steps(100, 200);
  EXPECT_EQ(run.Of({{"A", "gradients", "", "statistics", 1}})->Words(), "5 of 5 captures");
}

}  // namespace
}  // namespace telltale::rules
