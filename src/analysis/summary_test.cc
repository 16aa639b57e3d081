// SPDX-License-Identifier: Apache-2.0
#include "analysis/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace telltale::analysis {
namespace {

template <class Row>
void Feed(Summary* summary, Row row) {
  summary->OnRecord({row.ord_ns, 0, Row::kTable, &row});
}

format::StepRow Step(std::int64_t step, std::int64_t duration) {
  format::StepRow row;
  row.time_ns = 1'000'000'000 + step * 100;
  row.ord_ns = row.time_ns + duration;
  row.duration_ns = duration;
  row.step = step;
  row.mode = "TRAIN";
  row.attempt = 1;
  row.data_wait_ns = duration / 2;
  row.forward_ns = duration - row.data_wait_ns;
  row.batch_size = 8;
  row.probe_ns = duration / 100;
  return row;
}

TEST(QuantilesTest, AreWithinOnePercentAndExactAtTheEnds) {
  Quantiles q;
  for (int i = 1; i <= 10000; ++i) q.Add(i);
  EXPECT_EQ(q.min(), 1);
  EXPECT_EQ(q.max(), 10000);
  EXPECT_EQ(q.count(), 10000U);
  EXPECT_EQ(q.sum(), 10000.0 * 10001 / 2);
  for (double p : {0.01, 0.25, 0.5, 0.95, 0.99}) {
    EXPECT_NEAR(q.At(p), p * 10000, p * 10000 * 0.0101) << p;
  }
}

TEST(QuantilesTest, TakesZeroNegativeAndNotFinite) {
  Quantiles q;
  for (double v : {-5.0, -1.0, 0.0, 1.0, 5.0}) q.Add(v);
  q.Add(std::nan(""));
  q.Add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(q.count(), 5U);
  EXPECT_EQ(q.not_finite(), 2U);
  EXPECT_EQ(q.At(0.5), 0);
  EXPECT_EQ(q.At(0), -5);
  EXPECT_EQ(q.At(1), 5);
  EXPECT_EQ(Quantiles().At(0.5), 0);
}

TEST(QuantilesTest, OfTheLargestNumbersTooAreWithinOnePercent) {
  Quantiles q;
  for (const double v : {-1e306, -1e300, 1.0, 2.0, 1e300, 1e306, 1e307}) q.Add(v);
  EXPECT_EQ(q.At(0), -1e306);
  EXPECT_NEAR(q.At(2.0 / 7) / -1e300, 1, 0.0101);
  EXPECT_NEAR(q.At(3.0 / 7), 1, 0.0101);
  EXPECT_NEAR(q.At(5.0 / 7) / 1e300, 1, 0.0101);
  EXPECT_NEAR(q.At(6.0 / 7) / 1e306, 1, 0.0101);
  q.ForEachBucket([](double value, std::uint64_t) { EXPECT_TRUE(std::isfinite(value)); });
}

TEST(SummaryTest, AGapThatNoClockShowsIsNoGap) {
  Summary s;
  format::EventRow row;
  row.kind = "gap";
  row.attempt = 1;
  for (const char* data :
       {R"({"from_ns": -9223372036854775808, "to_ns": 9223372036854775807})",
        R"({"from_ns": 5, "to_ns": 18446744073709551615})", R"({"from_ns": 7, "to_ns": 5})"}) {
    row.data = data;
    Feed(&s, row);
  }
  EXPECT_TRUE(s.gaps.empty());
  EXPECT_EQ(s.folded, 3U) << "they are counted";
  row.data = R"({"from_ns": 5, "to_ns": 7})";
  Feed(&s, row);
  ASSERT_EQ(s.gaps.size(), 1U);
  EXPECT_EQ(s.gaps[0].to_ns, 7);
}

TEST(ColumnsTest, KeepEveryOutlierHoweverWideTheyGet) {
  Columns columns(64);
  for (std::int64_t i = 0; i < 1'000'000; ++i) columns.Add(i, i == 123'457 ? 99.0 : 1.0);
  EXPECT_LE(columns.columns().size(), 64U);
  std::uint64_t count = 0;
  double max = 0;
  double sum = 0;
  for (const Column& c : columns.columns()) {
    count += c.count;
    sum += c.sum;
    max = std::max(max, c.max);
    EXPECT_LE(c.kept.size(), 32U);
    EXPECT_EQ(c.median(), 1);
  }
  EXPECT_EQ(count, 1'000'000U);
  EXPECT_EQ(max, 99);
  EXPECT_EQ(sum, 1'000'098);
}

TEST(ColumnsTest, TakePointsBeforeTheFirst) {
  Columns columns(8);
  columns.Add(100, 1);
  columns.Add(3, 2);
  columns.Add(-50, 3);
  double sum = 0;
  for (const Column& c : columns.columns()) sum += c.sum;
  EXPECT_EQ(sum, 6);
  EXPECT_LE(columns.begin(), -50);
  EXPECT_LE(columns.columns().size(), 8U);
}

TEST(SummaryTest, StepsOfAttemptsAddUp) {
  Summary summary;
  EXPECT_EQ(summary.train_steps(), 0);
  for (int i = 0; i < 30; ++i) Feed(&summary, Step(i, 1000));
  format::StepRow row = Step(0, 1000);
  for (const std::int32_t rank : {0, 1}) {
    for (row.attempt = 2, row.rank = rank, row.step = 0; row.step < 10; ++row.step) {
      Feed(&summary, row);
    }
  }
  row.attempt = 3;
  row.mode = "EVAL";
  Feed(&summary, row);
  EXPECT_EQ(summary.train_steps(), 40);
}

TEST(SummaryTest, StepsCountFromTheFirstThatIsThere) {
  Summary summary;
  for (const int step : {7, 5, 6, 10, 8, 9}) Feed(&summary, Step(step, 1000));
  EXPECT_EQ(summary.train_steps(), 6);
}

TEST(SummaryTest, TheFirstStepOfAnAttemptCostsButDoesNotCountAsUsual) {
  Summary summary;
  Feed(&summary, Step(0, 1'000'000'000));
  for (int i = 1; i <= 100; ++i) Feed(&summary, Step(i, 10'000'000));
  const StepGroup* group = summary.Train(summary.train_rank());
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->steps, 101U);
  EXPECT_EQ(group->duration_ns, 2'000'000'000);
  EXPECT_EQ(group->steady_ns.count(), 100U);
  EXPECT_EQ(group->steady_ns.max(), 10'000'000);
  EXPECT_EQ(summary.train_steps(), 101);
  EXPECT_EQ(group->samples, 101 * 8);
  EXPECT_NEAR(summary.cost_share(), 0.01, 1e-9);
  const auto mean = summary.phases.Mean(0, 1000);
  ASSERT_TRUE(mean.has_value());
  EXPECT_NEAR((*mean)[0], 5'000'000, 1);
  EXPECT_FALSE(summary.phases.Mean(5000, 6000).has_value());
  EXPECT_EQ(summary.last_steps.size(), 30U);
}

TEST(SummaryTest, ScalarsAreOfTheRankWhoseStepsAreShown) {
  Summary summary;
  EXPECT_EQ(summary.shown_rank(), -1);
  EXPECT_TRUE(summary.scalars().values.empty());
  const auto scalar = [&](std::int32_t rank, std::int64_t step, double value) {
    format::ScalarRow row;
    row.name = "loss";
    row.mode = "TRAIN";
    row.rank = rank;
    row.step = step;
    row.value = value;
    Feed(&summary, row);
  };
  const auto step = [&](std::int32_t rank, std::int64_t number) {
    format::StepRow row = Step(number, 1000);
    row.rank = rank;
    Feed(&summary, row);
  };
  scalar(2, 0, 9);
  EXPECT_EQ(summary.shown_rank(), 2);
  scalar(1, 0, 5);
  step(2, 0);
  EXPECT_EQ(summary.shown_rank(), 2);
  EXPECT_EQ(summary.scalars().last_loss, 9);
  scalar(2, 0, std::nan(""));
  EXPECT_TRUE(std::isnan(summary.scalars().last_loss.value_or(0))) << "what it is now";
  EXPECT_EQ(summary.scalars().first_loss, 9);
  step(1, 0);
  EXPECT_EQ(summary.shown_rank(), 1);
  EXPECT_EQ(summary.scalars().first_loss, 5) << "logged before its first step ended";
  scalar(2, 1, 8);
  scalar(1, 1, 7);
  scalar(1, 2, 4);
  scalar(1, 3, std::nan(""));
  step(2, 1);
  step(1, 1);
  const ScalarTotal& total = summary.scalars().values.at({"loss", "TRAIN"});
  EXPECT_EQ(total.count, 3U);
  EXPECT_EQ(total.not_finite, 1U);
  EXPECT_EQ(total.last.value, 4);
  EXPECT_EQ(total.last.step, 2);
  EXPECT_EQ(total.min.value, 4);
  EXPECT_EQ(total.max.value, 7);
  EXPECT_EQ(total.max.step, 1);
  EXPECT_EQ(summary.last_steps.size(), 2U);
  for (const format::StepRow& row : summary.last_steps) EXPECT_EQ(row.rank, 1);
}

TEST(SummaryTest, LedgersOfManySubjectsAddUpOnce) {
  Summary summary;
  const auto feed = [&](std::string_view subject, std::uint64_t value) {
    format::LedgerRow row;
    row.name = "probe.records_dropped";
    row.subject = subject;
    row.value = value;
    row.loss = true;
    Feed(&summary, row);
  };
  feed("proc:1", 5);
  feed("proc:1", 7);  // Cumulative: replaces the 5.
  feed("proc:1", 7);
  feed("proc:2", 1);
  EXPECT_EQ(summary.ledger_value("probe.records_dropped"), 8U);
  EXPECT_TRUE(summary.ledger.at("probe.records_dropped").loss);
}

TEST(SummaryTest, MalformedFactsAreSkipped) {
  Summary summary;
  for (std::string_view data : {"", "{", "[]", "{\"from_ns\":\"x\"}", "null", "7"}) {
    for (std::string_view kind :
         {"gap", "process.start", "run.attempt_end", "dataloader", "framework", "probe.disabled"}) {
      format::EventRow row;
      row.kind = kind;
      row.data = data;
      Feed(&summary, row);
    }
  }
  EXPECT_TRUE(summary.gaps.empty());
  EXPECT_EQ(summary.records, 36U);
}

TEST(SummaryTest, NamesAreBounded) {
  Summary summary;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "span " + std::to_string(i);
    format::SpanRow row;
    row.name = name;
    row.category = "user";
    row.duration_ns = i;
    Feed(&summary, row);
  }
  EXPECT_LE(summary.spans.size(), 513U);
  EXPECT_GT(summary.folded, 0U);
  EXPECT_EQ(summary.longest_spans.size(), 10U);
  EXPECT_EQ(summary.longest_spans.front().duration_ns, 4999);
}

format::EventRow Event(const char* kind, std::int64_t time_ns, std::uint32_t attempt) {
  format::EventRow row;
  row.kind = kind;
  row.time_ns = row.ord_ns = time_ns;
  row.attempt = attempt;
  return row;
}

TEST(SummaryTest, WhoStoppedAnAttemptIsKnown) {
  Summary summary;
  Feed(&summary, Event("run.attempt_start", 10, 1));
  auto end = Event("run.attempt_end", 20, 1);
  end.data = R"({"stopped":{"who":"watch","rule":"LossSpike","why":"LossSpike: it jumps"}})";
  Feed(&summary, end);
  // Another machine's agent, which was asked for nothing.
  Feed(&summary, Event("run.attempt_end", 21, 1));
  Feed(&summary, Event("run.attempt_end", 30, 2));
  ASSERT_TRUE(summary.attempts.at(1).stopped.has_value());
  EXPECT_EQ(summary.attempts.at(1).stopped->rule, "LossSpike");
  EXPECT_EQ(summary.attempts.at(1).stopped->why, "LossSpike: it jumps");
  EXPECT_FALSE(summary.attempts.at(2).stopped.has_value());
}

TEST(SummaryTest, AStopThatIsSureCountsBeforeOneThatMayHaveEndedIt) {
  Summary summary;
  auto perhaps = Event("run.attempt_end", 20, 1);
  perhaps.data = R"({"stopped":{"who":"a","why":"x","perhaps":true}})";
  auto sure = Event("run.attempt_end", 21, 1);
  sure.data = R"({"stopped":{"who":"b","why":"y"}})";
  Feed(&summary, perhaps);
  EXPECT_TRUE(summary.attempts.at(1).stopped->perhaps);
  Feed(&summary, sure);
  Feed(&summary, perhaps);
  EXPECT_EQ(summary.attempts.at(1).stopped->who, "b");
  EXPECT_FALSE(summary.attempts.at(1).stopped->perhaps);
}

TEST(SummaryTest, AWordOfAStopIsBoundedAtACharacter) {
  Summary summary;
  std::string why(299, 'x');
  why += "\u00e4 and so on";
  const std::string data = R"({"stopped":{"who":7,"why":")" + why + R"("}})";
  auto end = Event("run.attempt_end", 20, 1);
  end.data = data;
  Feed(&summary, end);
  ASSERT_TRUE(summary.attempts.at(1).stopped.has_value());
  EXPECT_EQ(summary.attempts.at(1).stopped->why, std::string(299, 'x'));
  EXPECT_EQ(summary.attempts.at(1).stopped->who, "");
}

TEST(SummaryTest, RunPhasesCoverEachAttemptWithoutOverlap) {
  Summary summary;
  constexpr std::int64_t kS = 1'000'000'000;
  Feed(&summary, Event("run.attempt_start", 10 * kS, 1));
  Feed(&summary, Event("run.first_forward", 12 * kS, 1));
  Feed(&summary, Event("run.last_step", 18 * kS, 1));
  Feed(&summary, Event("run.attempt_end", 20 * kS, 1));
  // It failed before a forward pass; the third goes on.
  Feed(&summary, Event("run.attempt_start", 24 * kS, 2));
  Feed(&summary, Event("run.attempt_end", 25 * kS, 2));
  Feed(&summary, Event("run.attempt_start", 25 * kS, 3));
  Feed(&summary, Event("run.first_forward", 26 * kS, 3));
  Feed(&summary, Event("something", 30 * kS, 3));

  const auto intervals = summary.run_intervals();
  ASSERT_EQ(intervals.size(), 7U);
  std::int64_t at = 10 * kS;
  for (const RunInterval& interval : intervals) {
    EXPECT_EQ(interval.start_ns, at);
    at = interval.end_ns;
  }
  EXPECT_EQ(at, 30 * kS);
  EXPECT_EQ(intervals.back().attempt, 3U);
  const RunShares shares = summary.run_shares();
  EXPECT_EQ(shares.seconds_of(RunPhase::kInitialization), 3);
  EXPECT_EQ(shares.seconds_of(RunPhase::kLoop), 10);
  EXPECT_EQ(shares.seconds_of(RunPhase::kFinalization), 2);
  EXPECT_EQ(shares.seconds_of(RunPhase::kNoStep), 1);
  EXPECT_EQ(shares.seconds_of(RunPhase::kBetween), 4);
  EXPECT_EQ(shares.total, 20);
  EXPECT_EQ(shares.share_of(RunPhase::kLoop), 0.5);
  EXPECT_TRUE(Summary().run_intervals().empty());
  EXPECT_EQ(Summary().run_shares().share_of(RunPhase::kLoop), 0);
}

}  // namespace
}  // namespace telltale::analysis
