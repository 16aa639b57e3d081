// SPDX-License-Identifier: Apache-2.0
// A training whose steps take microseconds: however many steps it makes, all rules together say few
// things of it, and none of them is a charge against the program for what the machine did or for
// records that were dropped.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "rules/engine.h"
#include "rules/groups.h"

namespace telltale::rules::fast_loop {
namespace {

constexpr std::int64_t kUs = 1000;
constexpr std::int64_t kMs = 1'000'000;

struct Loop {
  std::int64_t steps = 0;
  std::int64_t step_ns = 0;  ///< Of most steps.
  bool drops = false;        ///< Its rings are full most of the time.
  bool loss = false;         ///< It logs a loss, whose noise has long tails.
};

struct Outcome {
  std::vector<Finding> findings;
  std::size_t groups = 0;
  std::size_t revisions = 0;
  double seconds = 0;
  std::map<std::string, std::size_t> by_rule;
};

/// What the default rules say of the loop. Interrupts take some 100 µs of one step in 200, another
/// program's turn 3 to 12 ms of one in 5,000.
Outcome Judge(const Loop& loop) {
  constexpr std::size_t kAtATime = 4096;
  std::mt19937_64 random(7);
  const auto chance = [&](std::uint64_t one_in) { return random() % one_in == 0; };
  const auto between = [&](std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(to - from));
  };
  Engine engine;
  Outcome out;
  std::deque<format::StepRow> rows;
  std::deque<format::ScalarRow> scalars;
  std::vector<store::OrderedRecord> records;
  const auto feed = [&] {
    engine.Feed(records);
    out.revisions += engine.TakeRevisions().size();
    records.clear();
    rows.clear();
    scalars.clear();
  };
  const std::int64_t begin_ns = 1'000'000'000'000;
  std::int64_t now_ns = begin_ns;
  for (std::int64_t step = 0; step < loop.steps; ++step) {
    std::int64_t ns = loop.step_ns + between(0, loop.step_ns / 4);
    if (chance(200)) ns += between(20 * kUs, 400 * kUs);
    if (chance(5000)) ns += between(3 * kMs, 12 * kMs);
    const std::int64_t start_ns = now_ns;
    now_ns += ns;
    // A ring that is full takes a row when the agent has taken one.
    if (loop.drops && step % 1000 >= 100 && step % 3 != 0) continue;
    format::StepRow& row = rows.emplace_back();
    row.time_ns = start_ns;
    row.ord_ns = now_ns;
    row.step = step;
    row.mode = "TRAIN";
    row.pid = 100;
    row.attempt = 1;
    row.duration_ns = row.other_ns = ns;
    records.push_back({row.ord_ns, 0, format::StepRow::kTable, &row});
    if (loop.loss) {
      format::ScalarRow& scalar = scalars.emplace_back();
      scalar.time_ns = scalar.ord_ns = now_ns;
      scalar.step = step;
      scalar.mode = "TRAIN";
      scalar.name = "loss";
      scalar.pid = 100;
      scalar.attempt = 1;
      scalar.value = 0.5 + 1e-9 * static_cast<double>(between(0, 100'000'000));
      if (chance(250)) scalar.value *= static_cast<double>(between(20, 60));
      records.push_back({scalar.ord_ns, 0, format::ScalarRow::kTable, &scalar});
    }
    if (records.size() >= kAtATime) feed();
  }
  feed();
  engine.End();
  out.revisions += engine.TakeRevisions().size();
  out.findings = engine.findings();
  for (const Finding& finding : out.findings) ++out.by_rule[finding.rule];
  out.groups = Groups(Ranked(out.findings)).size();
  out.seconds = static_cast<double>(now_ns - begin_ns) / 1e9;
  return out;
}

std::string Words(const Outcome& outcome) {
  std::string words = std::to_string(outcome.seconds) + " s:";
  for (const auto& [rule, count] : outcome.by_rule) {
    words += " " + rule + " " + std::to_string(count);
  }
  return words;
}

/// More at once at first, then one a second and one each five seconds, of each; they close and open
/// again at most each 30 seconds.
void ExpectFewRevisions(const Outcome& outcome) {
  const double each = kNewsBurst + 4 + 1.5 * outcome.seconds;
  EXPECT_LE(static_cast<double>(outcome.revisions),
            each * static_cast<double>(outcome.findings.size()))
      << Words(outcome);
}

TEST(FastLoopTest, OfALoopOfMicrosecondsFewThingsAreSaid) {
  const Outcome outcome = Judge({.steps = 300'000, .step_ns = 6 * kUs});
  EXPECT_LE(outcome.findings.size(), 4U) << Words(outcome);
  EXPECT_LE(outcome.groups, 4U) << Words(outcome);
  ExpectFewRevisions(outcome);
}

TEST(FastLoopTest, WhatWasDroppedIsNoStall) {
  const Outcome outcome = Judge({.steps = 300'000, .step_ns = 6 * kUs, .drops = true});
  EXPECT_EQ(outcome.by_rule.count("CallbackStall"), 0U) << Words(outcome);
  EXPECT_LE(outcome.findings.size(), 4U) << Words(outcome);
}

TEST(FastLoopTest, ALossThatJumpsAllTheTimeIsOneFinding) {
  const Outcome outcome = Judge({.steps = 300'000, .step_ns = 6 * kUs, .loss = true});
  EXPECT_EQ(outcome.by_rule.count("LossSpike"), 1U) << Words(outcome);
  EXPECT_LE(outcome.by_rule.at("LossSpike"), 1U) << Words(outcome);
  EXPECT_LE(outcome.findings.size(), 8U) << Words(outcome);
  EXPECT_LE(outcome.groups, 8U) << Words(outcome);
  ExpectFewRevisions(outcome);
}

TEST(FastLoopTest, MoreStepsMakeNoMoreFindings) {
  // The same loop for four times as long: 12 s and 48 s, in which some may have settled.
  const Outcome small = Judge({.steps = 100'000, .step_ns = 100 * kUs, .loss = true});
  const Outcome large = Judge({.steps = 400'000, .step_ns = 100 * kUs, .loss = true});
  EXPECT_LE(large.findings.size(), small.findings.size() + 4) << Words(small) << Words(large);
  ExpectFewRevisions(large);
}

}  // namespace
}  // namespace telltale::rules::fast_loop
