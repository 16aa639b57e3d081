// SPDX-License-Identifier: Apache-2.0
// Launch statistics, queue length, memory bandwidth.
#include <gtest/gtest.h>

#include "analysis/trace/launch_stats.h"
#include "analysis/trace/memory_bandwidth.h"
#include "analysis/trace/queue_length.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

TEST(LaunchStatsTest, DelaysAndOutliers) {
  TraceMaker maker;
  maker.Call("cudaLaunchKernel", 0, 10, 1).Kernel("short", 15, 4, 1);
  maker.Call("cudaLaunchKernel", 20, 60, 2).Kernel("slow call", 90, 80, 2);
  maker.Call("cudaLaunchKernel", 100, 5, 3).Kernel("late", 305, 80, 3);
  maker.Call("cudaMemcpyAsync", 400, 20, 4)
      .Work(Category::kMemcpy, "Memcpy HtoD", 405, 20, {.correlation = 4});
  const Trace trace = maker.Make();
  const auto launches = LaunchesOf(trace, Scope());
  ASSERT_EQ(launches.size(), 4U);
  EXPECT_EQ(launches[0].call_ns, 10'000);
  EXPECT_EQ(launches[0].work_ns, 4'000);
  EXPECT_EQ(launches[0].delay_ns, 5'000);
  EXPECT_EQ(launches[3].delay_ns, 0);  // It began before its call had ended.
  const LaunchSummary s = SummaryOf(launches, 50'000, 100'000);
  EXPECT_EQ(s.launches, 4U);
  EXPECT_EQ(s.short_kernels, 1U);
  EXPECT_EQ(s.slow_calls, 1U);
  EXPECT_EQ(s.delayed, 1U);
}

TEST(QueueLengthTest, LaunchedAndNotYetBegun) {
  TraceMaker maker;
  maker.Launched("a", 0, 5, 10);
  maker.Launched("b", 2, 15, 5);
  maker.Launched("c", 5, 20, 5);  // At the moment at which a begins: the launch comes first.
  maker.Launched("other stream", 1, 2, 5, 20);
  maker.Call("cudaStreamSynchronize", 30, 5, 99);
  const Trace trace = maker.Make();
  const auto queues = QueueLengthOf(trace, Scope());
  ASSERT_EQ(queues.size(), 2U);
  std::vector<std::int64_t> lengths;
  for (const QueuePoint& point : queues[0].points) lengths.push_back(point.length);
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{1, 2, 3, 2, 1, 0}));
  EXPECT_EQ(queues[0].points[2].time_ns, 5'000);
  EXPECT_EQ(TimeFull(trace, queues[0], 2), 13'000);  // 2 to 15.
  EXPECT_EQ(QueueSummary(queues[0]).max, 3);
  EXPECT_DOUBLE_EQ(QueueSummary(queues[0]).mean, 1.5);
}

TEST(QueueLengthTest, BetweenRecordingsNobodyKnowsTheLength) {
  TraceMaker maker;
  for (const double at : {0.0, 1e6}) {
    maker.Launched("a", at, at + 5, 10).Launched("b", at + 2, at + 15, 5);
    maker.Recording(at, at + 25);
  }
  const Trace trace = maker.Make();
  const auto queues = QueueLengthOf(trace, Scope());
  ASSERT_EQ(queues.size(), 1U);
  EXPECT_EQ(TimeFull(trace, queues[0], 2), 6'000);   // 2 to 5, twice.
  EXPECT_EQ(TimeFull(trace, queues[0], 0), 30'000);  // 0 to 15, twice.
}

TEST(MemoryBandwidthTest, SumOfWhatRuns) {
  TraceMaker maker(0, {.bytes = true, .facts = true});
  const auto copy = [&](double begin, double duration, std::int64_t bytes, std::string_view args) {
    maker.Work(Category::kMemcpy, "Memcpy HtoD (Pageable -> Device)", begin, duration,
               {.bytes = bytes, .args = args});
  };
  copy(0, 10, 20'000, R"json({"memory bandwidth (GB/s)": 2.5})json");  // As stated.
  copy(5, 10, 10'000, "");                                             // 1 GB/s by its size.
  maker.Work(Category::kMemset, "Memset (Device)", 0, 0, {.bytes = 4'000});
  const Trace trace = maker.Make();
  const auto kinds = MemoryBandwidthOf(trace, Scope());
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].kind, "Memcpy HtoD");
  EXPECT_EQ(kinds[0].copies, 2U);
  EXPECT_EQ(kinds[0].bytes, 30'000);
  ASSERT_EQ(kinds[0].points.size(), 4U);
  EXPECT_DOUBLE_EQ(kinds[0].points[1].gbps, 3.5);
  EXPECT_DOUBLE_EQ(kinds[0].points[2].gbps, 1);
  EXPECT_DOUBLE_EQ(kinds[0].points[3].gbps, 0);
  EXPECT_EQ(BandwidthSummary(kinds[0]).count, 3U);
  EXPECT_EQ(kinds[1].kind, "Memset");
  EXPECT_DOUBLE_EQ(kinds[1].points[0].gbps, 4);  // Of no length: as one of a microsecond.
}

}  // namespace
}  // namespace telltale::analysis::trace
