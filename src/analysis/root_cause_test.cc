// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

#include "base/units.h"

namespace telltale::analysis {
namespace {

constexpr std::int64_t kBegin = 1'800'000'000'000'000'000;

/// Writes a training of one rank or several, step by step.
class Training {
 public:
  CauseTrail trail;
  std::int64_t now = kBegin;

  struct Made {
    std::int64_t wait_ms = 1;
    std::int64_t forward_ms = 19;
    std::int64_t span_ms = -1;  ///< Negative: none.
    const char* span = "load";
    std::int32_t span_pid = 100;
    double gpu = -1;
    double core = -1;
    std::int32_t rank = 0;
    std::int64_t comm_ms = 0;
  };

  void Step(const Made& made) {
    if (made.gpu >= 0) Metric("gpu.utilization", "gpu:0", made.gpu);
    if (made.core >= 0) Metric("cpu.idle", "cpu:3", 100 - made.core);
    format::StepRow row;
    row.time_ns = now;
    row.data_wait_ns = made.wait_ms * kMs;
    row.forward_ns = made.forward_ms * kMs;
    row.comm_wait_ns = made.comm_ms * kMs;
    row.duration_ns = row.data_wait_ns + row.forward_ns + row.comm_wait_ns;
    if (made.span_ms >= 0) {
      format::SpanRow span;
      span.name = made.span;
      span.category = "user";
      span.duration_ns = made.span_ms * kMs;
      span.rank = made.rank;
      span.pid = made.span_pid;
      span.attempt = 1;
      span.time_ns = now;
      span.ord_ns = now + span.duration_ns;
      Feed(span);
    }
    row.ord_ns = now + row.duration_ns;
    row.step = steps_++;
    row.mode = "TRAIN";
    row.rank = made.rank;
    row.pid = 100 + made.rank;
    row.attempt = 1;
    Feed(row);
    if (made.rank == 0) now += row.duration_ns;
  }

  void Metric(const char* name, const char* subject, double value) {
    format::MetricRow row;
    row.node = "n";
    row.name = name;
    row.subject = subject;
    row.value = value;
    row.unit = "percent";
    row.time_ns = row.ord_ns = now;
    Feed(row);
  }

 private:
  template <class Row>
  void Feed(const Row& row) {
    trail.OnRecord({row.ord_ns, 0, Row::kTable, &row});
  }

  std::int64_t steps_ = 0;
};

TEST(CauseTrailTest, NamesWhatCoversTheGapAndTheSpanRatherThanThePhase) {
  Training t;
  for (int i = 0; i < 200; ++i) t.Step({.span_ms = 1});
  const Window slow{t.now, t.now + 100 * 60 * kMs};
  for (int i = 0; i < 100; ++i) t.Step({.wait_ms = 41, .span_ms = 40});
  for (int i = 0; i < 200; ++i) t.Step({.span_ms = 1});
  const Contrast c = t.trail.Between(std::array{slow});
  ASSERT_TRUE(c.comparable());
  EXPECT_NEAR(c.step_ns_during, 60e6, 2e6);
  EXPECT_NEAR(c.step_ns_normal, 20e6, 1e6);
  ASSERT_TRUE(c.cause);
  EXPECT_EQ(c.times[*c.cause].name, "load");
  EXPECT_EQ(c.times[*c.cause].kind, FactorKind::kSpan);
  EXPECT_NEAR(c.times[*c.cause].share, 39.0 / 40, 0.02);
  EXPECT_EQ(c.times.front().name, "data wait");
  EXPECT_NEAR(c.times.front().share, 1, 0.01);
}

TEST(CauseTrailTest, ColumnsReachBeyondTheEndOfAllTimes) {
  Training t;
  t.now = format::kTimeBound.least;
  for (int i = 0; i < 60; ++i) t.Step({});
  t.now = format::kTimeBound.most - 10 * kSecond;
  for (int i = 0; i < 60; ++i) t.Step({.wait_ms = 41});
  // The columns are so wide that the last of them begin where no time is any more.
  const Window late{format::kTimeBound.most - 20 * kSecond, format::kTimeBound.most};
  EXPECT_EQ(t.trail.Between(std::array{late}).steps_during, 0U) << "it fills a tenth of no column";
  const Window all{format::kTimeBound.most / 2, std::numeric_limits<std::int64_t>::max()};
  EXPECT_EQ(t.trail.Between(std::array{all}).steps_during, 60U);
}

TEST(CauseTrailTest, AShortIncidentOfALongRunIsFound) {
  Training t;
  for (int i = 0; i < 12'000; ++i) t.Step({});
  const Window slow{t.now, t.now + 5 * 60 * kMs};
  for (int i = 0; i < 5; ++i) t.Step({.wait_ms = 41});
  for (int i = 0; i < 6000; ++i) t.Step({});
  // 360 s in columns of 0.8 s: it fills less than half of one.
  const Contrast c = t.trail.Between(std::array{slow});
  ASSERT_TRUE(c.comparable());
  ASSERT_TRUE(c.cause);
  EXPECT_EQ(c.times[*c.cause].name, "data wait");
  EXPECT_LT(c.steps_during, 100U);
}

TEST(CauseTrailTest, TwoHalvesAreCandidatesAndNoCause) {
  Training t;
  for (int i = 0; i < 200; ++i) t.Step({});
  const Window slow{t.now, t.now + 100 * 60 * kMs};
  for (int i = 0; i < 100; ++i) t.Step({.wait_ms = 21, .forward_ms = 39});
  const Contrast c = t.trail.Between(std::array{slow});
  ASSERT_TRUE(c.comparable());
  EXPECT_FALSE(c.cause);
  ASSERT_EQ(c.times.size(), 2U);
  EXPECT_NEAR(c.times[0].share, 0.5, 0.02);
  EXPECT_NEAR(c.times[1].share, 0.5, 0.02);
}

TEST(CauseTrailTest, AWorkersSpanIsACauseOnlyWhereTheStepWaitsForData) {
  for (const bool waits : {true, false}) {
    Training t;
    const auto step = [&](bool slow) {
      t.Step({.wait_ms = slow && waits ? 41 : 1,
              .forward_ms = slow && !waits ? 59 : 19,
              .span_ms = slow ? 80 : 5,
              .span = "fetch",
              .span_pid = 4711});
    };
    for (int i = 0; i < 200; ++i) step(false);
    const Window slow{t.now, t.now + 100 * 60 * kMs};
    for (int i = 0; i < 100; ++i) step(true);
    const Contrast c = t.trail.Between(std::array{slow});
    ASSERT_TRUE(c.cause);
    EXPECT_EQ(c.times[*c.cause].name, waits ? "fetch" : "forward");
  }
}

TEST(CauseTrailTest, NothingIsSaidWithoutNormalSteps) {
  Training t;
  for (int i = 0; i < 200; ++i) t.Step({.wait_ms = 30});
  const Contrast c = t.trail.Between(std::array{Window{kBegin, t.now}});
  EXPECT_FALSE(c.comparable());
  EXPECT_TRUE(c.times.empty());
  EXPECT_FALSE(CauseTrail().Between({}).comparable());
  EXPECT_FALSE(CauseTrail().SlowSteps().comparable());
}

TEST(CauseTrailTest, OtherTroubleIsNotNormal) {
  Training t;
  for (int i = 0; i < 100; ++i) t.Step({});
  const Window first{t.now, t.now + 100 * 60 * kMs};
  for (int i = 0; i < 100; ++i) t.Step({.wait_ms = 41});
  const Window second{t.now, t.now + 100 * 100 * kMs};
  for (int i = 0; i < 100; ++i) t.Step({.forward_ms = 99});
  EXPECT_GT(t.trail.Between(std::array{first}).step_ns_normal, 50e6);
  EXPECT_NEAR(t.trail.Between(std::array{first}, std::array{second}).step_ns_normal, 20e6, 2e6);
}

TEST(CauseTrailTest, SingleSlowStepsAreComparedWithTheOthers) {
  Training t;
  for (int i = 0; i < 1000; ++i) {
    const bool slow = i > 100 && i % 50 == 0;
    t.Step({.forward_ms = slow ? 119 : 19, .span_ms = slow ? 100 : 0, .span = "train.py:42"});
  }
  const Contrast c = t.trail.SlowSteps();
  ASSERT_TRUE(c.comparable());
  EXPECT_EQ(c.steps_during, 17U);
  ASSERT_TRUE(c.cause);
  EXPECT_EQ(c.times[*c.cause].kind, FactorKind::kCode);
  EXPECT_EQ(c.times[*c.cause].name, "train.py:42");
}

TEST(CauseTrailTest, StarvedDevicesAreComparedWithBusyOnes) {
  Training t;
  for (int i = 0; i < 300; ++i) {
    const bool starved = i % 3 == 0;
    t.Step({.wait_ms = starved ? 61 : 1,
            .span_ms = starved ? 60 : 1,
            .span = "/data/train.tar",
            .gpu = starved ? 5.0 : 97.0,
            .core = starved ? 99.0 : 30.0});
  }
  const Contrast c = t.trail.StarvedSteps();
  ASSERT_TRUE(c.comparable());
  ASSERT_TRUE(c.cause);
  EXPECT_EQ(c.times[*c.cause].kind, FactorKind::kFile);
}

TEST(CauseTrailTest, TheRankThatBecameSlowerThanTheOthers) {
  Training t;
  const auto step = [&](bool slow) {
    for (int rank = 2; rank >= 0; --rank) {
      const bool it = slow && rank == 2;
      t.Step({.forward_ms = it ? 59 : 19, .rank = rank, .comm_ms = slow && !it ? 40 : 0});
    }
  };
  for (int i = 0; i < 200; ++i) step(false);
  const Window slow{t.now, t.now + 100 * 60 * kMs};
  for (int i = 0; i < 100; ++i) step(true);
  const Contrast c = t.trail.Between(std::array{slow});
  ASSERT_TRUE(c.comparable());
  ASSERT_TRUE(c.cause);
  EXPECT_EQ(c.times[*c.cause].name, "rank 2");
}

TEST(CauseTrailTest, MetricsThatMoveWithItAreShownAndAreNoCause) {
  Training t;
  const auto run = [&](int steps, std::int64_t wait, double rate) {
    for (int i = 0; i < steps; ++i) {
      t.Metric("disk.read_rate", "disk:vda", rate + i % 3);
      t.Metric("net.rx_rate", "net:eth0", 50);
      t.Step({.wait_ms = wait});
    }
  };
  run(200, 1, 100);
  const Window slow{t.now, t.now + 100 * 60 * kMs};
  run(100, 41, 5);
  const Contrast c = t.trail.Between(std::array{slow});
  ASSERT_EQ(c.metrics.size(), 1U);
  EXPECT_EQ(c.metrics[0].name, "disk.read_rate of disk:vda");
  EXPECT_GT(c.metrics[0].share, 0.9);
  EXPECT_EQ(c.times[*c.cause].name, "data wait");
}

TEST(CauseTrailTest, StaysBounded) {
  Training t;
  for (int i = 0; i < 3000; ++i) {
    const std::string name = "span " + std::to_string(i);
    t.Step({.span_ms = 1, .span = name.c_str()});
    t.now += 3600 * 1000 * kMs;  // Hours: columns become wider.
  }
  EXPECT_GT(t.trail.folded(), 2000U);
  const Window half{kBegin, kBegin + (t.now - kBegin) / 2};
  EXPECT_NEAR(static_cast<double>(t.trail.Between(std::array{half}).steps_during), 1500, 20);
}

}  // namespace
}  // namespace telltale::analysis
