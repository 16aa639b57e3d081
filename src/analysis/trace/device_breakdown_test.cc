// SPDX-License-Identifier: Apache-2.0
// Temporal, kernel and idle breakdown, overlap.
#include <gtest/gtest.h>

#include "analysis/trace/idle_breakdown.h"
#include "analysis/trace/kernel_breakdown.h"
#include "analysis/trace/kernel_class.h"
#include "analysis/trace/overlap.h"
#include "analysis/trace/temporal_breakdown.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

// gemm 0-10, all-reduce 5-20 beside it, copy 18-25, nothing until 30, gemm 30-34.
Trace Busy() {
  return TraceMaker()
      .Kernel("gemm", 0, 10)
      .Kernel("ncclDevKernel_AllReduce", 5, 15, 0, 20)
      .Work(Category::kMemcpy, "Memcpy HtoD (Pinned -> Device)", 18, 7, {.stream = 21})
      .Kernel("gemm", 30, 4)
      .Make();
}

TEST(TemporalBreakdownTest, IdleComputeAndTheRest) {
  const Trace trace = Busy();
  const TemporalBreakdown b = TemporalBreakdownOf(trace, Scope());
  EXPECT_EQ(b.span_ns, 34'000);
  EXPECT_EQ(b.idle_ns, 5'000);
  EXPECT_EQ(b.compute_ns, 14'000);
  EXPECT_EQ(b.non_compute_ns, 15'000);
}

TEST(TemporalBreakdownTest, NoDeviceIsAllZero) {
  const Trace trace = TraceMaker().Op("op", 0, 5).Make();
  EXPECT_EQ(TemporalBreakdownOf(trace, Scope()).span_ns, 0);
}

TEST(KernelBreakdownTest, EachMomentUnderWhatRuns) {
  const Trace trace = Busy();
  const OverlapTimes times = OverlapTimesOf(ClassTimes(trace, Scope()));
  EXPECT_EQ(times[1], 9'000);  // Computation: 0-5, 30-34.
  EXPECT_EQ(times[2], 8'000);  // Communication: 10-18.
  EXPECT_EQ(times[3], 5'000);  // Both: 5-10.
  EXPECT_EQ(times[4], 5'000);  // Memory: 20-25.
  EXPECT_EQ(times[6], 2'000);  // Communication and memory: 18-20.
  EXPECT_EQ(OverlapName(3), "computation overlapping communication");
  EXPECT_EQ(OverlapName(7), "computation overlapping communication overlapping memory");
}

TEST(KernelBreakdownTest, StatisticsOfEachKernel) {
  const Trace trace = Busy();
  const auto kernels = KernelStatisticsOf(trace, Scope());
  ASSERT_EQ(kernels.size(), 3U);
  EXPECT_EQ(kernels[0].name, "ncclDevKernel_AllReduce");
  EXPECT_EQ(kernels[0].of, KernelClass::kCommunication);
  EXPECT_EQ(kernels[1].name, "gemm");
  EXPECT_EQ(kernels[1].durations_ns.count(), 2U);
  EXPECT_EQ(kernels[1].durations_ns.sum(), 14'000);
  EXPECT_EQ(kernels[1].durations_ns.mean(), 7'000);
  EXPECT_EQ(kernels[1].durations_ns.min(), 4'000);
  EXPECT_EQ(kernels[1].durations_ns.max(), 10'000);
  EXPECT_NEAR(kernels[1].durations_ns.std(), 4'242.64, 0.01);
}

TEST(OverlapTest, HiddenOverAllCommunication) {
  const Trace trace = Busy();
  const CommunicationOverlap o = CommunicationOverlapOf(trace, Scope());
  EXPECT_EQ(o.communication_ns, 15'000);
  EXPECT_EQ(o.overlap_ns, 5'000);
}

TEST(IdleBreakdownTest, ByCause) {
  TraceMaker maker;
  maker.Launched("a", 0, 2, 8);      // 2-10
  maker.Launched("b", 1, 10.02, 4);  // 20 ns later: kernel wait. 10.02-14.02
  maker.Launched("c", 2, 16, 4);     // Launched long ago: other. 16-20
  maker.Launched("d", 25, 30, 1);    // Launched after c had ended: host wait.
  const Trace trace = maker.Make();
  const auto streams = IdleBreakdownOf(trace, Scope(), 30);
  ASSERT_EQ(streams.size(), 1U);
  EXPECT_EQ(streams[0].stream, 7);
  EXPECT_EQ(streams[0].sum_ns[static_cast<std::size_t>(IdleCause::kHostWait)], 10'000);
  EXPECT_EQ(streams[0].sum_ns[static_cast<std::size_t>(IdleCause::kKernelWait)], 20);
  EXPECT_EQ(streams[0].sum_ns[static_cast<std::size_t>(IdleCause::kOther)], 1'980);
  const auto wider = IdleBreakdownOf(trace, Scope(), 5'000);
  EXPECT_EQ(wider[0].sum_ns[static_cast<std::size_t>(IdleCause::kKernelWait)], 2'000);
}

TEST(IdleBreakdownTest, WithoutALaunchNothingIsTheHosts) {
  const Trace trace = TraceMaker().Kernel("a", 0, 1).Kernel("b", 5, 1).Make();
  const auto streams = IdleBreakdownOf(trace, Scope(), 30);
  EXPECT_EQ(streams[0].sum_ns[static_cast<std::size_t>(IdleCause::kOther)], 4'000);
}

/// The same step in two windows of detail, ten seconds apart: 2-10 and 16-20 us, each after a call.
Trace TwoWindows(bool windows = true) {
  TraceMaker maker;
  for (const double at : {0.0, 10e6}) {
    maker.Launched("gemm", at, at + 2, 8);
    maker.Launched("gemm", at + 11, at + 16, 4);
    if (windows) maker.Recording(at, at + 20);
  }
  return maker.Make();
}

TEST(RecordingsTest, TimeBetweenThemIsNotIdle) {
  const Trace trace = TwoWindows();
  ASSERT_EQ(trace.recordings.size(), 2U);
  EXPECT_EQ(trace.RecordingAt(20'000), 0U);
  EXPECT_EQ(trace.RecordingAt(10'000'000'000), 1U);
  const TemporalBreakdown b = TemporalBreakdownOf(trace, Scope());
  EXPECT_EQ(b.span_ns, 36'000);
  EXPECT_EQ(b.idle_ns, 12'000);
  EXPECT_EQ(b.compute_ns, 24'000);
  EXPECT_EQ(b.idle_ns + b.compute_ns + b.non_compute_ns, b.span_ns);
  const auto streams = IdleBreakdownOf(trace, Scope(), 30);
  ASSERT_EQ(streams.size(), 1U);
  EXPECT_EQ(streams[0].sum_ns[static_cast<std::size_t>(IdleCause::kHostWait)], 12'000);
  EXPECT_EQ(streams[0].gaps[static_cast<std::size_t>(IdleCause::kHostWait)].count, 2U);
  // One recording that went on all the while has seen that nothing ran.
  EXPECT_GT(TemporalBreakdownOf(TwoWindows(false), Scope()).idle_ns, 9'000'000'000);
}

TEST(RecordingsTest, ThoseThatOverlapAreOne) {
  TraceMaker maker;
  maker.Kernel("a", 0, 1).Kernel("b", 50, 1);
  maker.Recording(0, 30).Recording(20, 60);
  const Trace trace = maker.Make();
  EXPECT_TRUE(trace.recordings.empty());
  EXPECT_EQ(trace.recording_count(), 1U);
  EXPECT_EQ(TemporalBreakdownOf(trace, Scope()).idle_ns, 49'000);
}

}  // namespace
}  // namespace telltale::analysis::trace
