// SPDX-License-Identifier: Apache-2.0
#include "run/status_feed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/units.h"

namespace telltale::run {
namespace {

template <class Row>
void Add(StatusFold* fold, const Row& row) {
  fold->Add({row.ord_ns, 0, Row::kTable, &row});
}

format::StepRow Step(std::int64_t step, std::int64_t wait_ms) {
  format::StepRow row;
  row.mode = "TRAIN";
  row.attempt = 1;
  row.step = step;
  row.time_ns = step * 100 * kMs;
  row.duration_ns = 100 * kMs;
  row.data_wait_ns = wait_ms * kMs;
  row.probe_ns = kMs / 2;
  return row;
}

format::FindingRow Finding(std::string_view incident, std::string_view severity,
                           std::string_view state) {
  format::FindingRow row;
  row.incident = incident;
  row.rule = "InputBound";
  row.severity = severity;
  row.state = state;
  row.last_step = 18400;
  row.message = "Input pipeline\ncannot keep up";
  return row;
}

TEST(StatusFold, FoldsStepsOfThisAttempt) {
  StatusFold fold(1);
  for (std::int64_t i = 0; i < 200; ++i) Add(&fold, Step(i, i < 100 ? 0 : 40));
  format::StepRow other = Step(5000, 0);
  other.attempt = 2;
  Add(&fold, other);
  const StatusFacts& facts = fold.facts();
  EXPECT_EQ(facts.step, 199);
  EXPECT_NEAR(facts.steps_per_second, 10, 1e-6);
  EXPECT_NEAR(facts.wait_share, 0.4, 1e-6) << "of the last seconds only";
  EXPECT_NEAR(facts.overhead_share, 0.005, 1e-6);
}

TEST(StatusWord, ComesThroughAMessage) {
  StatusWord word;
  word.facts.step = 18400;
  word.facts.steps_per_second = 12.5;
  word.facts.has_loss = true;
  word.facts.loss = std::numeric_limits<double>::quiet_NaN();
  word.facts.cpu_percent = std::numeric_limits<double>::infinity();
  word.facts.dropped = 7;
  for (int i = 0; i < 3000; ++i) {
    word.facts.open[std::to_string(i)] = {i % 3 == 0 ? "InputBound" : "CallbackStall", "high", "",
                                          i};
  }
  word.changes = {{17, 4, "high", "Input \"cannot\" keep up", true}};
  word.more_changes = 5;
  const std::string message = ToMessage(word);
  EXPECT_LT(message.size(), 4096U) << "of bounded size";
  StatusWord got;
  ASSERT_TRUE(FromMessage(message, &got)) << message;
  EXPECT_EQ(got.facts.step, 18400);
  EXPECT_TRUE(std::isnan(got.facts.loss));
  EXPECT_EQ(got.facts.cpu_percent, -1);
  EXPECT_EQ(got.more_changes, 5U);
  ASSERT_EQ(got.changes.size(), 1U);
  EXPECT_EQ(got.changes[0].message, word.changes[0].message);
  EXPECT_TRUE(got.changes[0].closed);
  EXPECT_EQ(RenderStatus(got.facts, 200, false), RenderStatus(
                                                     [&] {
                                                       word.facts.cpu_percent = -1;
                                                       return word.facts;
                                                     }(),
                                                     200, false));
  for (const std::string_view bad : {"", "{", "[]", "{}", "{\"step\":\"x\"}"}) {
    EXPECT_FALSE(FromMessage(bad, &got)) << bad;
  }
}

TEST(StatusFold, WhatTelltaleCostsIsOfAllStepsAndItsProcesses) {
  // As the verdict has it: of every mode, from the first step on.
  StatusFold fold(1);
  for (std::int64_t i = 0; i < 1000; ++i) {
    format::StepRow row = Step(i, 0);
    row.probe_ns = i == 0 ? row.duration_ns / 2 : 0;
    Add(&fold, row);
  }
  format::StepRow eval = Step(0, 0);
  eval.mode = "EVAL";
  eval.duration_ns *= 1000;
  eval.probe_ns = 0;
  Add(&fold, eval);
  EXPECT_NEAR(fold.facts().overhead_share, 0.5 / 2000, 1e-9);
  format::LedgerRow taken;
  taken.name = "agent.taken_ns";
  taken.value = 20;
  Add(&fold, taken);
  taken.name = "agent.taken_of_ns";
  taken.value = 1000;
  Add(&fold, taken);
  Add(&fold, Step(1000, 0));
  EXPECT_NEAR(fold.facts().overhead_share, 0.02, 0.001);
}

TEST(StatusFold, WhatWasAskedForAndIsTooDearIsALine) {
  StatusFold fold(1);
  format::EventRow row;
  row.kind = "governor";
  row.attempt = 1;
  row.message = "it is taken 4 times less often";
  row.data = R"({"stretch": 4, "shed": []})";
  Add(&fold, row);
  EXPECT_TRUE(fold.TakeChanges().empty());
  row.data = R"({"stretch": 4, "shed": [], "asked": {"stretch": 4}})";
  Add(&fold, row);
  const auto changes = fold.TakeChanges();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].message, row.message);
}

TEST(StatusFold, SaysOnlyChangesOfFindings) {
  StatusFold fold(1);
  Add(&fold, Finding("a", "medium", "open"));
  Add(&fold, Finding("a", "medium", "open"));
  EXPECT_EQ(fold.TakeChanges().size(), 1U);
  Add(&fold, Finding("a", "high", "open"));
  ASSERT_EQ(fold.facts().open.size(), 1U);
  Add(&fold, Finding("a", "high", "closed"));
  const auto changes = fold.TakeChanges();
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].severity, "high");
  EXPECT_TRUE(changes[1].closed);
  EXPECT_TRUE(fold.facts().open.empty());
  const std::string line = RenderChange(changes[1], false);
  EXPECT_NE(line.find(" step 18,400  ◆ high    Input pipeline\\ncannot keep up (closed)"),
            std::string::npos)
      << line;
}

TEST(StatusFold, SaysThatTheTrainingIsBeingStopped) {
  StatusFold fold(1);
  Add(&fold, Step(189, 0));
  format::EventRow event;
  event.kind = "stop.begun";
  event.severity = "medium";
  event.message = "watch stops the training: LossSpike: the loss\njumps";
  event.attempt = 2;
  Add(&fold, event);
  EXPECT_TRUE(fold.TakeChanges().empty()) << "another attempt's";
  event.attempt = 1;
  Add(&fold, event);
  const auto changes = fold.TakeChanges();
  ASSERT_EQ(changes.size(), 1U);
  const std::string line = RenderChange(changes[0], false);
  EXPECT_NE(line.find(" step 189  ▲ medium  watch stops the training: LossSpike: the loss\\njumps"),
            std::string::npos)
      << line;
}

TEST(StatusFold, SaysHowFarThePlanIsThinned) {
  StatusFold fold(1);
  format::EventRow event;
  event.kind = "governor";
  event.attempt = 1;
  event.data = R"({"stretch":27,"shed":["values"]})";
  Add(&fold, event);
  EXPECT_EQ(fold.facts().stretch, 27U);
  EXPECT_TRUE(fold.facts().shed);
  event.kind = "plan";
  Add(&fold, event);
  EXPECT_EQ(fold.facts().stretch, 1U);
  EXPECT_FALSE(fold.facts().shed);
}

TEST(StatusLine, IsCutToTheWidthFromTheEnd) {
  StatusFacts facts;
  facts.step = 41280;
  facts.steps_per_second = 1.83;
  facts.has_loss = true;
  facts.loss = 2.22;
  facts.cpu_percent = 171;
  facts.wait_share = 0.31;
  facts.overhead_share = 0.0041;
  facts.open["x"] = {"InputBound", "high", "", 1};
  EXPECT_EQ(RenderStatus(facts, 200, false),
            " step 41,280  1.8 steps/s  loss 2.22  CPU 171 %  wait 31 %  ◆ InputBound  +0.41 %");
  facts.stretch = 27;
  EXPECT_TRUE(RenderStatus(facts, 200, false).ends_with("+0.41 %  thinned ×27"));
  EXPECT_EQ(RenderStatus(facts, 40, false), " step 41,280  1.8 steps/s  loss 2.22");
  EXPECT_NE(RenderStatus(facts, 200, true).find("\x1b[1;31m◆ InputBound\x1b[0m"),
            std::string::npos);
  EXPECT_EQ(RenderStatus(StatusFacts{}, 80, false), " waiting for the first step");
}

}  // namespace
}  // namespace telltale::run
