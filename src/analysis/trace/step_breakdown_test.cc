// SPDX-License-Identifier: Apache-2.0
// Step time breakdown, GPU metrics, stragglers.
#include "analysis/trace/step_breakdown.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "analysis/trace/gpu_metrics.h"
#include "analysis/trace/stragglers.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

std::int64_t RoleNs(const StepCost& step, StepRole role) {
  return step.role_ns[static_cast<std::size_t>(role)];
}

TEST(StepBreakdownTest, EachMomentUnderTheFirstWordThatHolds) {
  TraceMaker maker;
  maker.Step(1, 0, 100);
  maker.On(Category::kData, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30,
           {});
  maker.Op("aten::mm", 35, 30);
  maker.Launched("gemm", 40, 45, 15);                  // Call 40-41, kernel 45-60.
  maker.Launched("ncclKernel_AllReduce", 42, 55, 20);  // Call 42-43, 55-75.
  maker.Call("cudaMemcpyAsync", 80, 4, 5)
      .Work(Category::kMemcpy, "Memcpy DtoH", 82, 8, {.correlation = 5});
  const Trace trace = maker.Make();
  const StepBreakdown b = StepBreakdownOf(trace);
  ASSERT_EQ(b.steps.size(), 1U);
  const StepCost& step = b.steps[0];
  EXPECT_EQ(RoleNs(step, StepRole::kKernel), 15'000);         // 45-60
  EXPECT_EQ(RoleNs(step, StepRole::kMemcpy), 8'000);          // 82-90
  EXPECT_EQ(RoleNs(step, StepRole::kCommunication), 15'000);  // 60-75
  EXPECT_EQ(RoleNs(step, StepRole::kRuntime), 4'000);         // 40-41, 42-43, 80-82
  EXPECT_EQ(RoleNs(step, StepRole::kDataLoader), 30'000);
  EXPECT_EQ(RoleNs(step, StepRole::kCpuExec), 8'000);  // 35-40, 41-42, 43-45
  EXPECT_EQ(RoleNs(step, StepRole::kOther), 20'000);
  EXPECT_EQ(std::accumulate(step.role_ns.begin(), step.role_ns.end(), std::int64_t{0}),
            step.span.length());
  EXPECT_EQ(step.computation_ns, 15'000);
  EXPECT_EQ(step.communication_ns, 20'000);
  EXPECT_EQ(step.overlap_ns, 5'000);
  EXPECT_EQ(step.rest_ns, 70'000);
}

TEST(StepBreakdownTest, WhatALoadersWorkerDoesIsNoWaitOfTheStep) {
  TraceMaker maker;
  maker.Step(1, 0, 100);
  maker.On(Category::kData, "DataLoaderIter", 0, 5, {});
  maker.On(Category::kData, "DataLoaderWorker", 0, 90, {.pid = 200});
  const StepBreakdown b = StepBreakdownOf(maker.Make());
  ASSERT_EQ(b.steps.size(), 1U);
  EXPECT_EQ(RoleNs(b.steps[0], StepRole::kDataLoader), 5'000);
  EXPECT_EQ(RoleNs(b.steps[0], StepRole::kOther), 95'000);
}

TEST(StepBreakdownTest, AStepLastsUntilItsWorkHasEnded) {
  TraceMaker maker;
  maker.Step(1, 0, 100).Launched("a", 90, 110, 20);
  maker.Step(2, 100, 100).Launched("b", 150, 160, 20);
  maker.Step(3, 200, 100);
  const Trace trace = maker.Make();
  const StepBreakdown b = StepBreakdownOf(trace);
  ASSERT_EQ(b.steps.size(), 2U);  // The third launched nothing: the profiler missed it.
  EXPECT_EQ(b.left_out, 1U);
  EXPECT_EQ(b.steps[0].span, (Span{0, 130'000}));
  EXPECT_EQ(b.steps[1].span, (Span{130'000, 200'000}));
}

TEST(StepBreakdownTest, WithoutMarksTheOperatorsAreOneStep) {
  const Trace trace = TraceMaker().Op("a", 10, 20).Op("b", 50, 10).Make();
  const StepBreakdown b = StepBreakdownOf(trace);
  ASSERT_EQ(b.steps.size(), 1U);
  EXPECT_EQ(b.steps[0].span, (Span{10'000, 60'000}));
  EXPECT_EQ(RoleNs(b.steps[0], StepRole::kCpuExec), 30'000);
  EXPECT_TRUE(StepBreakdownOf(TraceMaker().Make()).steps.empty());
}

/// Two windows of detail of `steps` steps of 100 us each, a second apart; a kernel of 40 us in each
/// step but the last of a window, which the profiler did not see.
Trace InWindows(int steps) {
  TraceMaker maker(0, {.facts = true});
  for (const int window : {0, 1}) {
    const double begin = window * 1e6;
    for (int i = 0; i < steps; ++i) {
      const double at = begin + i * 100;
      maker.Step(window * 1000 + i, at, 100).Op("aten::mm", at + 5, 10);
      const std::int64_t correlation = window * 100 + i + 1;
      maker.Call("cudaLaunchKernel", at + 10, 1, correlation);
      if (i + 1 == steps && steps > 1) continue;
      maker.Work(Category::kKernel, "gemm", at + 20, 40,
                 {.correlation = correlation, .args = R"({"blocks per SM": 0.5})"});
    }
    maker.Recording(begin, begin + steps * 100);
  }
  return maker.Make();
}

TEST(RecordingsTest, OfEachTheLastStepIsLeftOut) {
  const Trace trace = InWindows(3);
  const StepBreakdown b = StepBreakdownOf(trace);
  std::vector<std::int64_t> steps;
  for (const StepCost& step : b.steps) {
    steps.push_back(step.step);
    EXPECT_EQ(step.span.length(), 100'000) << step.step;
    EXPECT_EQ(RoleNs(step, StepRole::kKernel), 40'000) << step.step;
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 1000, 1001}));
  EXPECT_EQ(b.left_out, 2U);
  EXPECT_EQ(StepWindows(trace, b), (Spans{{0, 200'000}, {1'000'000'000, 1'000'200'000}}));
  EXPECT_EQ(StepBreakdownOf(InWindows(1)).steps.size(), 2U) << "it is all that there is";
}

TEST(RecordingsTest, ADeviceIsNotIdleBetweenThem) {
  const GpuMetricsOfRank metrics = GpuMetricsOf(InWindows(3));
  ASSERT_EQ(metrics.devices.size(), 1U);
  EXPECT_DOUBLE_EQ(metrics.devices[0].utilisation, 0.4);
  EXPECT_DOUBLE_EQ(metrics.devices[0].sm_efficiency, 0.2);
}

TEST(RecordingsTest, OperatorsAreCountedAnewInEach) {
  // Two windows of one step; the operator with the id 5 is a collective in the first alone.
  TraceMaker maker;
  for (const int window : {0, 1}) {
    const double at = window * 1e6;
    maker.Step(window, at, 100);
    maker.On(Category::kOp, window == 0 ? "nccl:all_reduce" : "aten::mm", at + 5, 10,
             {.external = 5});
    maker.Call("cudaLaunchKernel", at + 10, 1, 7);
    maker.Work(Category::kKernel, "kernel", at + 20, 40, {.correlation = 7, .external = 5});
    maker.Recording(at, at + 100);
  }
  const StepBreakdown b = StepBreakdownOf(maker.Make());
  ASSERT_EQ(b.steps.size(), 2U);
  EXPECT_EQ(b.steps[0].span.length(), 100'000);
  EXPECT_EQ(RoleNs(b.steps[0], StepRole::kKernel), 0);
  EXPECT_EQ(RoleNs(b.steps[1], StepRole::kKernel), 40'000);
  EXPECT_EQ(b.steps[1].communication_ns, 0);
}

TEST(RecordingsTest, StepsThatOverlapAreCountedOnce) {
  // The first step's mark holds the second one.
  TraceMaker within(0, {.facts = true});
  within.Step(1, 0, 1000).Step(2, 100, 100);
  within.Work(Category::kKernel, "gemm", 500, 250, {.args = R"({"blocks per SM": 1})"});
  const Trace held = within.Make();
  EXPECT_EQ(StepWindows(held, StepBreakdownOf(held)), (Spans{{0, 1'000'000}}));
  const GpuMetricsOfRank of_held = GpuMetricsOf(held);
  ASSERT_EQ(of_held.devices.size(), 1U);
  EXPECT_DOUBLE_EQ(of_held.devices[0].utilisation, 0.25);
  // Work of the first recording lasts into the second one.
  TraceMaker maker(0, {.facts = true});
  const auto launched = [&](double call, double begin, double duration, std::int64_t correlation) {
    maker.Call("cudaLaunchKernel", call, 1, correlation);
    maker.Work(Category::kKernel, "gemm", begin, duration,
               {.correlation = correlation, .args = R"({"blocks per SM": 1})"});
  };
  maker.Step(1, 0, 100).Recording(0, 100);
  launched(10, 50, 100, 1);
  maker.Step(2, 120, 80).Recording(120, 200);
  launched(130, 160, 30, 1);
  const Trace lasting = maker.Make();
  EXPECT_EQ(StepWindows(lasting, StepBreakdownOf(lasting)), (Spans{{0, 200'000}}));
  const GpuMetricsOfRank metrics = GpuMetricsOf(lasting);
  ASSERT_EQ(metrics.devices.size(), 1U);
  EXPECT_DOUBLE_EQ(metrics.devices[0].utilisation, 0.65);
  EXPECT_DOUBLE_EQ(metrics.devices[0].sm_efficiency, 0.65);
}

TEST(RecordingsTest, WithoutMarksTheOperatorsOfEachAreAStep) {
  TraceMaker maker;
  maker.Op("a", 10, 20).Op("b", 50, 10).Recording(0, 60);
  maker.Op("a", 1000, 20).Recording(990, 1020);
  const StepBreakdown b = StepBreakdownOf(maker.Make());
  ASSERT_EQ(b.steps.size(), 2U);
  EXPECT_EQ(b.steps[0].span, (Span{10'000, 60'000}));
  EXPECT_EQ(b.steps[1].span, (Span{1'000'000, 1'020'000}));
}

TEST(GpuMetricsTest, UtilisationEfficiencyOccupancyTensorCores) {
  TraceMaker maker(0, {.facts = true});
  maker.Step(1, 0, 100);
  const auto kernel = [&](std::string_view name, double begin, double duration, std::int64_t stream,
                          std::string_view args) {
    const auto correlation = static_cast<std::int64_t>(begin) + 1;
    maker.Op("aten::mm", begin - 5, 4).Call("cudaLaunchKernel", begin - 4, 1, correlation);
    maker.Work(Category::kKernel, name, begin, duration,
               {.correlation = correlation, .stream = stream, .args = args});
  };
  kernel("sm80_xmma_gemm", 10, 20, 7, R"({"blocks per SM": 0.5,"est. achieved occupancy %": 40})");
  kernel("add", 20, 20, 8, R"({"blocks per SM": 3,"est. achieved occupancy %": 80})");
  const Trace trace = maker.Make();
  const GpuMetricsOfRank metrics = GpuMetricsOf(trace);
  ASSERT_EQ(metrics.devices.size(), 1U);
  const GpuMetrics& m = metrics.devices[0];
  EXPECT_DOUBLE_EQ(m.utilisation, 0.3);
  EXPECT_DOUBLE_EQ(m.sm_efficiency, (10 * 0.5 + 20) / 100);
  EXPECT_NEAR(m.occupancy, 0.6, 1e-7);
  EXPECT_DOUBLE_EQ(m.tensor_core_share, 0.5);
  EXPECT_DOUBLE_EQ(metrics.eligible_share, 1);
  EXPECT_FALSE(NamesTensorCores("nvjet_hsh_128x256"));
  EXPECT_TRUE(NamesTensorCoresWide("nvjet_hsh_128x256"));
}

TEST(StragglersTest, WhoBeginsLast) {
  // Three ranks, two whole steps of 1000 us; rank 2 comes 200 us late to the long all-reduce.
  std::vector<RankCollectives> ranks;
  for (const int rank : {0, 1, 2}) {
    TraceMaker maker(rank);
    for (const int step : {1, 2, 3}) {
      const double at = step * 1000.0;
      maker.Step(step, at, 1000);
      const double late = rank == 2 ? 200 : rank * 10;
      maker.Launched("ncclKernel_AllReduce", at + 50, at + 300 + late, 500 - late);
      maker.Launched("ncclKernel_Broadcast", at + 60, at + 900, 2);  // Shorter than 1 %.
    }
    const Trace trace = maker.Make();
    ranks.push_back(CollectivesOf(trace, Scope(trace, {}), {}));
  }
  const Stragglers found = StragglersOf(ranks, 1);
  EXPECT_EQ(found.kernel, "ncclKernel_AllReduce");
  ASSERT_EQ(found.ranks.size(), 3U);
  EXPECT_EQ(found.ranks[0].rank, 2);
  EXPECT_EQ(found.ranks[0].steps, 2U);
  EXPECT_EQ(found.ranks[0].late_ns, 200'000);
  EXPECT_EQ(found.ranks[1].steps, 0U);
}

TEST(StragglersTest, TimeBetweenWindowsIsNoPartOfAStep) {
  std::vector<RankCollectives> ranks;
  for (const int rank : {0, 1}) {
    TraceMaker maker(rank);
    for (const int window : {0, 1}) {
      const double begin = window * 1e6;
      for (const int step : {0, 1, 2}) {
        const double at = begin + step * 1000;
        maker.Step(window * 100 + step, at, 1000);
        // Longer than 1 % of a step, and not of the time between windows.
        maker.Launched("ncclKernel_AllReduce", at + 50, at + 500 + rank * 40, 100 - rank * 40);
      }
      maker.Recording(begin, begin + 3000);
    }
    const Trace trace = maker.Make();
    ranks.push_back(CollectivesOf(trace, Scope(trace, {}), {}));
    EXPECT_EQ(ranks.back().steps.size(), 4U);
  }
  const Stragglers found = StragglersOf(ranks, 1);
  EXPECT_EQ(found.step_ns, 1'000'000);
  ASSERT_EQ(found.ranks.size(), 2U);
  EXPECT_EQ(found.ranks[0].rank, 1);
}

TEST(StragglersTest, WhatOneRankAloneHasRecordedIsComparedWithNothing) {
  // Both ranks record a first window; one of them a second one too, whose steps count from 0 again.
  std::vector<RankCollectives> ranks;
  for (const int rank : {0, 1}) {
    TraceMaker maker(rank);
    for (int window = 0; window <= rank; ++window) {
      const double begin = window * 1e6;
      for (const int step : {0, 1, 2}) {
        const double at = begin + step * 1000;
        maker.Step(step, at, 1000);
        maker.Launched("ncclKernel_AllReduce", at + 50, at + 500 + rank * 40, 100 - rank * 40);
      }
      if (rank == 1) maker.Recording(begin, begin + 3000);
    }
    const Trace trace = maker.Make();
    ranks.push_back(CollectivesOf(trace, Scope(trace, {}), {}));
  }
  EXPECT_EQ(ranks[0].steps.size(), 2U);
  EXPECT_EQ(ranks[1].steps.size(), 4U);
  const Stragglers found = StragglersOf(ranks, 1);
  EXPECT_EQ(found.step_ns, 1'000'000) << "of four steps";
  ASSERT_EQ(found.ranks.size(), 2U);
  EXPECT_EQ(found.ranks[0].rank, 1);
  EXPECT_EQ(found.ranks[0].steps, 2U);
  EXPECT_EQ(found.ranks[0].late_ns, 40'000);
}

TEST(StragglersTest, ARankOfOneRecordingBesideOneOfSeveral) {
  // Rank 0 has the second window alone: what it marks there is time of steps too.
  std::vector<RankCollectives> ranks;
  for (const int rank : {0, 1}) {
    TraceMaker maker(rank);
    for (const int window : {0, 1, 2}) {
      if (rank == 0 && window != 2) continue;
      if (rank == 1 && window == 2) continue;
      const double begin = window * 1e6;
      for (const int step : {0, 1}) maker.Step(10 * window + step, begin + step * 1000, 1000);
      if (rank == 1) maker.Recording(begin, begin + 2000);
    }
    const Trace trace = maker.Make();
    ranks.push_back(CollectivesOf(trace, Scope(trace, {.last_step = true}), {}));
  }
  EXPECT_EQ(StragglersOf(ranks, 1).step_ns, 1'000'000) << "six steps in three windows of 2 ms";
}

TEST(StragglersTest, OneRankOrNoCollectiveJudgesNobody) {
  TraceMaker maker;
  maker.Step(1, 0, 100).Launched("gemm", 1, 5, 10);
  const Trace trace = maker.Make();
  EXPECT_TRUE(StragglersOf({CollectivesOf(trace, Scope(), {})}, 2).kernel.empty());
  EXPECT_TRUE(StragglersOf({}, 2).ranks.empty());
}

}  // namespace
}  // namespace telltale::analysis::trace
