// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

/// Steps of 100 ms that cost 5 % of it, each with statistics.
std::vector<format::StepRow> Steps(std::size_t count, std::int64_t first = 0) {
  std::vector<format::StepRow> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i].mode = "TRAIN";
    rows[i].step = first + static_cast<std::int64_t>(i);
    rows[i].time_ns = rows[i].step * 100 * kMs;
    rows[i].duration_ns = 100 * kMs;
    rows[i].probe_ns = 5 * kMs;
  }
  return rows;
}

std::vector<plan::PlannedRule> EveryStep() {
  plan::PlannedRule rule;
  rule.take = plan::kStats;
  rule.core = true;
  rule.when[0].interval = 1;
  return {rule};
}

std::vector<PendingEvent> Said(Outbox* outbox) {
  format::Batch batch;
  outbox->AddTo(1, &batch);
  std::vector<PendingEvent> said;
  for (const format::EventRow& row : batch.rows.events) {
    PendingEvent event;
    event.kind = row.kind;
    event.severity = row.severity;
    event.message = row.message;
    event.data = row.data;
    said.push_back(event);
  }
  outbox->Sent();
  return said;
}

TEST(Budget, StepsThatTheJournalRefusesCountOnce) {
  Budget budget(0.01, EveryStep());
  Outbox outbox;
  for (int i = 0; i < 1000; ++i) {
    budget.Offer(Steps(4));
    budget.Rollback();
  }
  EXPECT_EQ(budget.thinning(), plan::Thinning{});
  budget.Offer(Steps(4));
  budget.Commit(0, &outbox);
  EXPECT_TRUE(outbox.empty()) << "too few to decide by";
  budget.Offer(Steps(4, 4));
  budget.Commit(0, &outbox);
  EXPECT_GE(budget.thinning().stretch, 5U);
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "governor");
  const auto data = ParseJson(said[0].data);
  EXPECT_EQ(data["stretch"], budget.thinning().stretch);
  EXPECT_NEAR(data["share"].get<double>(), 0.05, 0.001);
  EXPECT_TRUE(data["shed"].empty());
  EXPECT_NE(said[0].message.find("times less often"), std::string::npos) << said[0].message;
}

TEST(Budget, WhatIsTakenLessOftenIsNamed) {
  std::vector<plan::PlannedInterval> intervals = {
      {"weights", {}, 100}, {"gradients", {}, 100}, {"losses", 0, 10}, {"losses", 1, 1}};
  Budget budget(0.01, EveryStep(), intervals);
  Outbox outbox;
  budget.Offer(Steps(8));
  budget.Commit(0, &outbox);
  const auto stretch = budget.thinning().stretch;
  const auto each = [&](std::uint32_t planned) {
    return " each " + std::to_string(planned * stretch) + " steps instead of " +
           std::to_string(planned);
  };
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(said[0].message.ends_with("than planned (weights, gradients" + each(100) +
                                        "; losses in TRAIN" + each(10) + "; losses in EVAL" +
                                        each(1) + ")"))
      << said[0].message;

  intervals.resize(11, {"more", {}, 1});
  budget.Restart(EveryStep(), intervals);
  budget.Published(800 * kMs);
  budget.Offer(Steps(8, 8));
  budget.Commit(0, &outbox);
  const auto again = Said(&outbox);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again[0].message.ends_with("; and 3 more)")) << again[0].message;
}

TEST(Budget, ThatItCannotBeKeptIsSaidOnce) {
  Budget budget(0.01, {});
  Outbox outbox;
  for (int i = 0; i < 20; ++i) {
    budget.Offer(Steps(100, i * 100));
    budget.Commit(0, &outbox);
  }
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "budget.exceeded");
  EXPECT_EQ(said[0].severity, "medium");
}

TEST(Budget, OwnProcessesAreSaidToo) {
  Budget budget(0.01, EveryStep());
  Outbox outbox;
  budget.OwnCost(0.02, 0, &outbox);
  EXPECT_GT(budget.sampling_stretch(), 1U);
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].message.find("sampled"), std::string::npos) << said[0].message;
}

TEST(ModeOf, KnowsTheFour) {
  EXPECT_EQ(ModeOf("TRAIN"), 0U);
  EXPECT_EQ(ModeOf("GLOBAL"), 3U);
  EXPECT_FALSE(ModeOf("train").has_value());
}

}  // namespace
}  // namespace telltale::agent
