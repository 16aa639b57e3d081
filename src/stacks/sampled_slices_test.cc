// SPDX-License-Identifier: Apache-2.0
#include "stacks/sampled_slices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "query/slice_order.h"

namespace telltale::stacks {
namespace {

using Lines = std::vector<std::string>;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kStart = 1000 * kMs;
constexpr std::int64_t kPeriod = 50 * kMs;

class SampledSlicesTest : public ::testing::Test {
 protected:
  SampledSlicesTest() {
    trace_.names = {"t.py(1): main", "t.py(5): hot", "t.py(9): cold"};
    processes_.trainers[10] = 2;
  }
  void Span(std::string_view name, std::int64_t begin, std::int64_t end, std::int64_t step) {
    format::SpanRow row;
    row.time_ns = kStart + begin * kMs;
    row.duration_ns = (end - begin) * kMs;
    row.name = name;
    row.category = "phase";
    row.step = step;
    row.mode = "TRAIN";
    row.rank = 2;
    clock_.AddSpan(row);
  }
  Lines Slices() {
    for (ThreadTimeline& thread : trace_.threads) {
      for (Observation& seen : thread.seen) seen.at_ns *= kMs;
    }
    for (std::int64_t& round : trace_.rounds) round *= kMs;
    trace_.end_ns *= kMs;
    return Again();
  }
  Lines Again() {
    rows_.clear();
    given_.clear();
    samples_ = MakeSlices(trace_, {.start_ns = kStart, .period_ns = kPeriod}, processes_, &clock_,
                          &pool_, [&](std::vector<format::SliceRow>* rows) {
                            given_.push_back(rows->size());
                            rows_.insert(rows_.end(), rows->begin(), rows->end());
                            rows->clear();
                          });
    Lines out;
    for (const format::SliceRow& row : rows_) {
      const std::int64_t begin = row.time_ns - kStart;
      out.push_back(fmt::format("{}-{} {} {}", begin / kMs, (begin + row.duration_ns) / kMs,
                                row.name, row.step));
    }
    return out;
  }
  ThreadTimeline& Thread(std::int64_t pid, std::int64_t tid) {
    ThreadTimeline& thread = trace_.threads.emplace_back();
    thread.pid = pid;
    thread.tid = tid;
    thread.name = "MainThread";
    return thread;
  }

  PySpyTrace trace_;
  Processes processes_;
  PhaseClock clock_;
  StringPool pool_;
  std::vector<format::SliceRow> rows_;
  std::vector<std::size_t> given_;  ///< How many at a time.
  std::uint64_t samples_ = 0;
};

TEST_F(SampledSlicesTest, EachSampleLiesInThePhaseOfItsMoment) {
  Thread(10, 10).seen = {{0, {0, 1}}, {150, {0, 2}}};
  trace_.rounds = {0, 51, 100, 150, 200};  // As others' stacks tell.
  trace_.end_ns = 250;
  Span("forward", 0, 90, 7);
  Span("backward", 90, 190, 7);
  Span("forward", 190, 300, 8);
  EXPECT_EQ(Slices(), (Lines{
                          "0-250 main thread -1",
                          "0-100 forward 7",  // Two samples, one slice.
                          "0-100 t.py(1): main 7",
                          "0-100 t.py(5): hot 7",
                          "100-200 backward 7",
                          "100-200 t.py(1): main 7",
                          "100-150 t.py(5): hot 7",
                          "150-200 t.py(9): cold 7",
                          "200-250 forward 8",  // The same name, another step.
                          "200-250 t.py(1): main 8",
                          "200-250 t.py(9): cold 8",
                      }));
  EXPECT_EQ(samples_, 5U);
  for (const format::SliceRow& row : rows_) {
    EXPECT_EQ(row.rank, 2);
    EXPECT_EQ(row.pid, 10);
    EXPECT_EQ(row.device, -1);
    EXPECT_EQ(row.window, query::kSampledStacks);
    EXPECT_EQ(row.category == "python", row.name.starts_with("t.py"));
    EXPECT_EQ(row.ord_ns, row.time_ns + row.duration_ns);
  }
}

TEST_F(SampledSlicesTest, TheSamePhaseOfTheNextStepIsAnother) {
  Thread(10, 10).seen = {{0, {0}}};
  trace_.end_ns = 100;
  Span("forward", 0, 50, 7);
  Span("forward", 50, 100, 8);
  EXPECT_EQ(Slices(), (Lines{"0-100 main thread -1", "0-50 forward 7", "0-50 t.py(1): main 7",
                             "50-100 forward 8", "50-100 t.py(1): main 8"}));
}

TEST_F(SampledSlicesTest, WhereNoLookIsKnownThePhaseIsNotGuessed) {
  // All looks found it in the hot function of the forward pass, none in the short phase between.
  Thread(10, 10).seen = {{0, {0, 1}}};
  trace_.end_ns = 200;
  Span("forward", 0, 90, 7);
  Span("data_wait", 90, 110, 8);
  Span("forward", 110, 200, 8);
  EXPECT_EQ(Slices(), (Lines{"0-200 main thread -1", "0-150 forward 7", "0-150 t.py(1): main 7",
                             "0-150 t.py(5): hot 7", "150-200 forward 8", "150-200 t.py(1): main 8",
                             "150-200 t.py(5): hot 8"}));
  EXPECT_EQ(samples_, 1U);
}

TEST_F(SampledSlicesTest, ThreadsOfOursAreNotTheTrainings) {
  ThreadTimeline& thread = Thread(10, 12);
  thread.name = "telltale-stacks";
  thread.seen = {{0, {1}}};
  trace_.end_ns = 100;
  EXPECT_TRUE(Slices().empty());
}

TEST_F(SampledSlicesTest, WorkersHaveTheRankAndPhaseOfTheirTrainer) {
  ThreadTimeline& worker = Thread(11, 11);
  worker.ancestors = {9, 10};
  worker.seen = {{0, {1}}};
  ThreadTimeline& stranger = Thread(50, 50);
  stranger.seen = {{0, {1}}};
  trace_.end_ns = 50;
  Span("data_wait", 0, 50, 3);
  EXPECT_EQ(Slices(), (Lines{"0-50 worker: main thread -1", "0-50 data_wait 3",
                             "0-50 t.py(5): hot 3", "0-50 other process: main thread -1",
                             "0-50 initialization -1", "0-50 t.py(5): hot -1"}));
  EXPECT_EQ(rows_[0].rank, 2);
  EXPECT_EQ(rows_[3].rank, 0);
}

TEST_F(SampledSlicesTest, ABackgroundThreadThatStandsStillIsOneSlice) {
  ThreadTimeline& thread = Thread(10, 12);
  thread.name = "Thread-1 (pin)";
  thread.seen = {{0, {1}}, {120, {2}}};
  trace_.end_ns = 200;
  Span("forward", 0, 60, 7);
  Span("forward", 60, 200, 8);
  EXPECT_EQ(Slices(), (Lines{"0-200 Thread-1 (pin) -1", "0-120 forward 7", "0-120 t.py(5): hot 7",
                             "120-200 forward 8", "120-200 t.py(9): cold 8"}));
}

TEST_F(SampledSlicesTest, AProcessThatEndedStandsNowhereAfter) {
  Thread(10, 10).seen = {{0, {0}}};
  trace_.end_ns = 500;
  processes_.ended_ns[10] = kStart + 70 * kMs;
  EXPECT_EQ(Slices(),
            (Lines{"0-70 main thread -1", "0-70 initialization -1", "0-70 t.py(1): main -1"}));
  processes_.ended_ns[10] = kStart - 5;
  EXPECT_EQ(Again().front(), "0-500 main thread -1") << "that was another with its pid";
}

TEST_F(SampledSlicesTest, TimesSumToTheTimeSampled) {
  Thread(10, 10).seen = {{3, {0, 1}}, {61, {0}}, {97, {0, 1, 2}}, {388, {}}};
  trace_.end_ns = 417;
  Span("forward", 20, 333, 1);
  Slices();
  std::int64_t own = 0;
  for (const format::SliceRow& row : rows_) {
    if (row.kind == "phase") own += row.duration_ns;
  }
  EXPECT_EQ(own, (417 - 3) * kMs);
}

TEST_F(SampledSlicesTest, ManySlicesComeSomeThousandAtATime) {
  constexpr int kChanges = 20'000;
  for (const std::int64_t pid : {10, 11}) {
    ThreadTimeline& thread = Thread(pid, pid);
    for (int i = 0; i < kChanges; ++i) {
      thread.seen.push_back(
          {i, i % 2 == 0 ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0, 2}});
    }
  }
  trace_.end_ns = kChanges;
  Span("forward", 0, kChanges, 7);
  Slices();
  ASSERT_GT(given_.size(), 2U);
  for (const std::size_t count : given_) EXPECT_LE(count, kSlicesAtOnce + 20);
  // Two threads: each once, its phase and its outermost frame, and all the others below.
  EXPECT_EQ(rows_.size(), 2 * (3U + kChanges));
  std::map<std::string, std::int64_t> own_ms;
  for (const format::SliceRow& row : rows_) {
    own_ms[std::string(row.name)] += row.duration_ns / kMs;
    EXPECT_EQ(row.ord_ns, row.time_ns + row.duration_ns);
  }
  EXPECT_EQ(own_ms["t.py(1): main"], 2 * kChanges);
  EXPECT_EQ(own_ms["t.py(5): hot"], kChanges);
  EXPECT_EQ(own_ms["t.py(9): cold"], kChanges);
  EXPECT_EQ(own_ms["main thread"], kChanges);
}

}  // namespace
}  // namespace telltale::stacks
