// SPDX-License-Identifier: Apache-2.0
#include "analysis/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace telltale::analysis {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Made {
  int steps = 400;
  std::int64_t step_ns = 50'000'000;
  std::int64_t wait_ns = 0;    ///< Of each step, of data.
  std::int64_t wobble_ns = 0;  ///< Slow waves of this height, 40 steps long.
  std::int64_t tenth_ns = 0;   ///< Of each tenth step, of data.
  std::int64_t batch = 32;
  double loss = 1;  ///< At the end; it begins at twice that.
  bool not_finite = false;
};

Summary Make(const Made& made) {
  Summary summary;
  std::int64_t now = 1'800'000'000'000'000'000;
  for (int i = 0; i < made.steps; ++i) {
    format::StepRow row;
    row.step = i;
    row.mode = "TRAIN";
    row.attempt = 1;
    row.batch_size = made.batch;
    row.time_ns = now;
    // Each value a little other, so that no two are equal.
    row.data_wait_ns = made.wait_ns + ((i / 40) % 2 == 0 ? made.wobble_ns : 0) +
                       (i % 10 == 9 ? made.tenth_ns : 0);
    row.forward_ns = made.step_ns + (i * 7919) % 1000;
    row.duration_ns = row.data_wait_ns + row.forward_ns;
    now += row.duration_ns;
    row.ord_ns = now;
    summary.OnRecord({row.ord_ns, 0, format::StepRow::kTable, &row});
    format::ScalarRow loss;
    loss.name = "loss";
    loss.mode = "TRAIN";
    loss.step = i;
    loss.attempt = 1;
    loss.ord_ns = loss.time_ns = now;
    loss.value = made.loss * (2 - static_cast<double>(i) / made.steps) + (i * 31 % 17) * 1e-3;
    if (made.not_finite && i == made.steps / 2) loss.value = kNaN;
    summary.OnRecord({loss.ord_ns, 0, format::ScalarRow::kTable, &loss});
  }
  return summary;
}

const Measure* Find(const Comparison& comparison, const std::string& name) {
  const auto found = std::find_if(comparison.measures.begin(), comparison.measures.end(),
                                  [&](const Measure& m) { return m.name == name; });
  return found == comparison.measures.end() ? nullptr : &*found;
}

TEST(ComparisonTest, ASlowerStepIsARegressionAndItsPhaseIsNamed) {
  const Comparison c = Compare(Make({}), Make({.wait_ns = 10'000'000}));
  EXPECT_TRUE(c.regression());
  const Measure* step = Find(c, "step time");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->verdict, Change::kWorse);
  EXPECT_NEAR(step->change, 0.2, 0.01);
  EXPECT_LT(*step->p, 1e-3);
  EXPECT_EQ(*step->delta, 1);
  EXPECT_GT(step->interval->low, 1.15);
  EXPECT_LT(step->interval->high, 1.25);
  EXPECT_EQ(Find(c, "data wait")->verdict, Change::kWorse);
  EXPECT_EQ(Find(c, "forward")->verdict, Change::kSame);
  EXPECT_EQ(Find(c, "throughput")->verdict, Change::kWorse);
  EXPECT_FALSE(Compare(Make({.wait_ns = 10'000'000}), Make({})).regression());
}

TEST(ComparisonTest, TheSameRunAndASmallChangeAreNone) {
  EXPECT_FALSE(Compare(Make({}), Make({})).regression());
  EXPECT_TRUE(Compare(Make({}), Make({})).judged());
  // 2 % is certain, and below the threshold.
  const Comparison small = Compare(Make({}), Make({.wait_ns = 1'000'000}));
  EXPECT_FALSE(small.regression());
  EXPECT_LT(*Find(small, "step time")->p, 0.01);
}

TEST(ComparisonTest, StepsThatFollowEachOtherAreNotCountedOneByOne) {
  // Both waver by 20 % in waves; one began on a crest and has one crest more. Steps one by one
  // would call this certain.
  const Comparison c = Compare(Make({.steps = 400, .wobble_ns = 10'000'000}),
                               Make({.steps = 440, .wobble_ns = 10'000'000}));
  EXPECT_EQ(Find(c, "step time")->verdict, Change::kSame);
  EXPECT_EQ(Find(c, "throughput")->verdict, Change::kSame);
}

TEST(ComparisonTest, ALongerRunOfTheSameIsTheSame) {
  // Each tenth step takes three times as long: of few steps a column has one, of many it has 64.
  const Summary few = Make({.steps = 400, .tenth_ns = 100'000'000});
  const Summary many = Make({.steps = 20'000, .tenth_ns = 100'000'000});
  // Their losses are of other schedules.
  const Comparison longer = Compare(few, many);
  const Comparison shorter = Compare(many, few);
  for (const char* name : {"step time", "throughput", "data wait"}) {
    EXPECT_EQ(Find(longer, name)->verdict, Change::kSame) << name;
    EXPECT_EQ(Find(shorter, name)->verdict, Change::kSame) << name;
  }
  // One that only the seldom step has is one.
  EXPECT_TRUE(Compare(Make({}), few).regression());
}

TEST(ComparisonTest, TooFewStepsSayNothing) {
  const Comparison c = Compare(Make({.steps = 5}), Make({.steps = 400, .wait_ns = 50'000'000}));
  EXPECT_EQ(Find(c, "step time")->verdict, Change::kUntested);
  EXPECT_FALSE(c.regression());
  EXPECT_FALSE(c.notes.empty());
  const Comparison none = Compare(Summary(), Make({}));
  EXPECT_FALSE(none.judged());
  EXPECT_FALSE(none.notes.empty());
}

TEST(ComparisonTest, OtherBatchesAreComparedByThroughput) {
  // Twice the batch in 1.5 times the time is faster, though each step is slower.
  const Comparison c = Compare(Make({}), Make({.step_ns = 75'000'000, .batch = 64}));
  EXPECT_FALSE(c.regression());
  EXPECT_EQ(Find(c, "throughput")->verdict, Change::kBetter);
  EXPECT_TRUE(Find(c, "throughput")->gates);
  EXPECT_FALSE(Find(c, "step time")->gates);
  // Otherwise it is the same test twice.
  EXPECT_FALSE(Find(Compare(Make({}), Make({})), "throughput")->gates);
}

TEST(ComparisonTest, WhereABatchIsNotKnownStepTimeIsTheGate) {
  const Comparison c = Compare(Make({}), Make({.wait_ns = 10'000'000, .batch = 0}));
  EXPECT_TRUE(Find(c, "step time")->gates);
  EXPECT_EQ(Find(c, "throughput"), nullptr);
  EXPECT_TRUE(c.regression());
}

TEST(ComparisonTest, LossesAtEqualSteps) {
  const Comparison c = Compare(Make({}), Make({.loss = 1.5}));
  EXPECT_EQ(Find(c, "loss")->verdict, Change::kWorse);
  EXPECT_TRUE(c.regression());
  ASSERT_EQ(c.losses.size(), Comparison::kLossSteps);
  EXPECT_EQ(c.losses.front().step, 0);
  EXPECT_EQ(c.losses.back().step, 399);
  EXPECT_NEAR(c.losses.back().b / c.losses.back().a, 1.5, 0.03);
  const Comparison nan = Compare(Make({}), Make({.not_finite = true}));
  EXPECT_TRUE(nan.regression());
  EXPECT_EQ(Find(nan, "losses that are no number")->b, 1);
}

}  // namespace
}  // namespace telltale::analysis
