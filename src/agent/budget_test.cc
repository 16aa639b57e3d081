// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <gtest/gtest.h>

#include <map>
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
  Budget budget(0.01, EveryStep(), {{"weights", {}, 1, 0}});
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
  std::vector<plan::PlannedInterval> intervals = {{"weights", {}, 100, 0},
                                                  {"gradients", {}, 100, 0},
                                                  {"losses", 0, 10, 0},
                                                  {"losses", 1, 1, 0}};
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

  intervals.resize(11, {"more", {}, 1, 0});
  budget.Restart(EveryStep(), intervals);
  budget.Published(800 * kMs);
  budget.Offer(Steps(8, 8));
  budget.Commit(0, &outbox);
  const auto again = Said(&outbox);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again[0].message.ends_with("; and 3 more)")) << again[0].message;

  // So dear that one thing after another is shed: what is not taken at all is not taken less often.
  intervals = {{"losses", {}, 1, 0}, {"outputs", {}, 1, 1}, {"gradients", {}, 1, 2}};
  std::vector<plan::PlannedRule> rules(3);
  rules[0].take = plan::kRaw;
  rules[1].take = plan::kStats | plan::kHistogram;
  rules[2].take = plan::kStats;
  rules[0].core = rules[2].core = true;
  for (plan::PlannedRule& rule : rules) rule.when[0].interval = 1;
  budget.Restart(rules, intervals);
  std::map<std::uint32_t, std::string> by_shed;
  std::int64_t time_ns = 1600 * kMs;
  for (std::int64_t step = 0; step < 400 && budget.thinning().shed < 5; ++step) {
    budget.Published(time_ns);
    auto rows = Steps(1, step * 1024);  // Due however far it is stretched.
    rows[0].time_ns = time_ns;
    rows[0].probe_ns = 99 * kMs;
    budget.Offer(rows);
    budget.Commit(time_ns, &outbox);
    time_ns += 100 * kMs;
    for (const PendingEvent& event : Said(&outbox)) {
      if (event.kind == "governor") by_shed[budget.thinning().shed] = event.message;
    }
  }
  ASSERT_EQ(budget.thinning(), (plan::Thinning{1024, 5}));
  const std::string each_1024 = " each 1024 steps instead of 1), not taken any more: values";
  EXPECT_NE(by_shed[1].find("(outputs, gradients" + each_1024), std::string::npos) << by_shed[1];
  EXPECT_NE(by_shed[2].find("(outputs, gradients" + each_1024), std::string::npos) << by_shed[2];
  EXPECT_NE(by_shed[4].find("(gradients" + each_1024), std::string::npos) << by_shed[4];
  EXPECT_NE(by_shed[5].find("1.00 %: not taken any more: values"), std::string::npos) << by_shed[5];
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

TEST(Budget, WhatIsThinnedIsMarkedForTheAgentThatComesNext) {
  const auto mark = [](Outbox* outbox) {
    format::Batch batch;
    outbox->AddTo(1, &batch);
    outbox->Sent();
    EXPECT_EQ(batch.positions.size(), 1U);
    EXPECT_EQ(batch.positions.at(0).producer, format::RingPosition{}.producer);
    EXPECT_EQ(batch.positions.at(0).ring, kThinnedMarkRing);
    return batch.positions.at(0).position;
  };
  Outbox outbox;
  Budget budget(0.01, EveryStep());
  budget.SayAgain("Another plan", 0, &outbox);
  EXPECT_TRUE(outbox.empty()) << "nothing was thinned";
  budget.Offer(Steps(8));
  budget.Commit(0, &outbox);
  EXPECT_EQ(mark(&outbox), 1U);
  Budget next(0.01, EveryStep());
  next.SayAgain("Another agent", 0, &outbox, true);
  EXPECT_EQ(mark(&outbox), 0U);
  next.SayAgain("Another agent", 0, &outbox, true);
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "governor");
  EXPECT_EQ(said[0].message, "Another agent: everything is taken as planned again");
  EXPECT_FALSE(ParseJson(said[0].data).contains("share"));
}

TEST(Budget, OwnProcessesAreSaidToo) {
  Budget budget(0.01, EveryStep());
  Outbox outbox;
  budget.OwnCost(0.02, 5000 * kMs, 0, &outbox);
  EXPECT_GT(budget.sampling_stretch(), 1U);
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].message.find("sampled"), std::string::npos) << said[0].message;
}

TEST(Budget, WhatItSaysOfAllStepsIsTheShareOfAllSteps) {
  // As the verdict has it at the end: the probe's time by the time of all steps, of every mode.
  Budget budget(0.01, {});
  Outbox outbox;
  auto rows = Steps(200);
  for (std::size_t i = 100; i < rows.size(); ++i) rows[i].mode = "EVAL";
  for (std::size_t i = 0; i < rows.size(); i += 2) rows[i].probe_ns = 1 * kMs;
  budget.Offer(rows);
  budget.Commit(0, &outbox);
  const auto said = Said(&outbox);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "budget.exceeded");
  EXPECT_NEAR(budget.governor().so_far(), 0.03, 1e-9);
  EXPECT_NE(said[0].message.find("has cost 3."), std::string::npos) << said[0].message;
}

TEST(Budget, WhatIsAskedForAndTooDearIsSaidAtTheStart) {
  std::vector<plan::PlannedRule> rules = EveryStep();
  rules[0].asked = true;
  Budget budget(0.01, rules, {{"weights", {}, 1, 0}});
  Outbox outbox;
  auto rows = Steps(8);
  for (format::StepRow& row : rows) row.probe_ns = 90 * kMs;
  budget.Offer(rows);
  budget.Commit(0, &outbox);
  const auto said = Said(&outbox);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said[0].message.starts_with("The first 20 captures of what was asked for by name"))
      << said[0].message;
  EXPECT_GT(ParseJson(said[0].data)["asked"]["stretch"], 1);
}

TEST(ModeOf, KnowsTheFour) {
  EXPECT_EQ(ModeOf("TRAIN"), 0U);
  EXPECT_EQ(ModeOf("GLOBAL"), 3U);
  EXPECT_FALSE(ModeOf("train").has_value());
}

}  // namespace
}  // namespace telltale::agent
