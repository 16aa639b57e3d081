// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/describe.h"
#include "analysis/trace/intervals.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/shape_flops.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

TEST(TraceTest, RowsAreSortedWithWhatEnclosesFirst) {
  const Trace trace =
      TraceMaker().Op("inner", 10, 5).Op("late", 20, 1).Op("outer", 10, 8).Op("first", 1, 2).Make();
  ASSERT_EQ(trace.size(), 4U);
  EXPECT_EQ(trace.NameOf(0), "first");
  EXPECT_EQ(trace.NameOf(1), "outer");
  EXPECT_EQ(trace.NameOf(2), "inner");
  EXPECT_EQ(trace.NameOf(3), "late");
  EXPECT_EQ(trace.end_ns(1), 18'000);
}

TEST(TraceTest, WhatWasLaunchedIsLinkedWithItsLaunch) {
  const Trace trace = TraceMaker()
                          .Call("cudaLaunchKernel", 0, 2, 5)
                          .Kernel("k", 4, 3, 5)
                          .Kernel("of nobody", 8, 1, 6)
                          .Kernel("without a number", 9, 1)
                          .Make();
  EXPECT_EQ(trace.launch[1], 0U);
  EXPECT_EQ(trace.launch[2], kNoRow);
  EXPECT_EQ(trace.launch[3], kNoRow);
  EXPECT_EQ(trace.launch[0], kNoRow);
}

TEST(TraceTest, EachRecordingCountsItsLaunchesAnew) {
  TraceMaker maker;
  maker.Call("first", 0, 2, 5).Kernel("a", 4, 3, 5).Recording(0, 10);
  maker.Call("second", 100, 2, 5).Kernel("b", 104, 3, 5).Recording(100, 110);
  maker.Kernel("launched before it was recorded", 201, 3, 5).Recording(200, 210);
  const Trace trace = maker.Make();
  ASSERT_EQ(trace.size(), 5U);
  EXPECT_EQ(trace.launch[1], 0U);
  EXPECT_EQ(trace.launch[3], 2U);
  EXPECT_EQ(trace.launch[4], kNoRow);
}

TEST(TraceTest, TheProfilersOwnMarksAreNoSlices) {
  TraceBuilder builder(0);
  for (const std::string_view kind : {"Trace", "", "overhead"}) {
    format::SliceRow row;
    row.name = kind;
    row.category = "other";
    row.kind = kind;
    builder.Add(row);
  }
  const Trace trace = builder.Finish();
  ASSERT_EQ(trace.size(), 1U);
  EXPECT_EQ(trace.NameOf(0), "overhead");
}

TEST(TraceTest, ABrokenDurationLeavesEndsNumbers) {
  TraceBuilder builder(0);
  builder.Add({.begin_ns = 10,
               .duration_ns = std::numeric_limits<std::int64_t>::max(),
               .name = builder.NameId("endless"),
               .lane = builder.LaneId(1, 1, -1, -1, ""),
               .category = Category::kOp,
               .kind = builder.KindId("cpu_op")});
  builder.Add({.begin_ns = 20,
               .duration_ns = -5,
               .name = builder.NameId("backwards"),
               .lane = builder.LaneId(1, 1, -1, -1, ""),
               .category = Category::kOp,
               .kind = builder.KindId("cpu_op")});
  const Trace trace = builder.Finish();
  EXPECT_EQ(trace.end_ns(0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(trace.duration_ns[1], 0);
}

TEST(TraceTest, NumbersAreFoundInArguments) {
  const std::string_view json =
      R"({"note":"\"blocks per SM\": 9","blocks per SM": 1.5,"grid":[1,2],"occupancy":"none"})";
  EXPECT_EQ(NumberIn(json, "blocks per SM"), 1.5);
  EXPECT_TRUE(std::isnan(NumberIn(json, "occupancy")));
  EXPECT_TRUE(std::isnan(NumberIn(json, "blocks")));
  EXPECT_TRUE(std::isnan(NumberIn("", "grid")));
}

TEST(ScopeTest, TheLastStepAndWhatNobodyLaunchedAreLeftOut) {
  TraceMaker maker;
  maker.Step(1, 0, 100).Step(2, 100, 100);
  maker.Launched("in", 10, 20, 5);  // Rows 1, 2 of step 1.
  maker.Launched("launched late", 150, 160, 5);
  maker.Kernel("of nobody", 30, 5);
  maker.Op("op", 50, 5);
  const Trace trace = maker.Make();
  const Scope scope(trace, {});
  std::string in;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (scope.Has(i)) in += trace.NameOf(i) + " ";
  }
  EXPECT_EQ(in, "ProfilerStep#1 cudaLaunchKernel in op ");
  EXPECT_EQ(scope.left_out(), 2U);

  const Scope with_last(trace, {.last_step = true});
  EXPECT_EQ(with_last.left_out(), 1U);
  const Scope all(trace, {.everything = true});
  EXPECT_TRUE(all.all());
}

TEST(ScopeTest, OfEachRecordingTheLastStepIsLeftOut) {
  TraceMaker maker;
  maker.Step(1, 0, 100).Launched("a", 10, 20, 5);
  maker.Step(2, 100, 100).Launched("b", 110, 120, 5);
  maker.Recording(0, 200);
  maker.Step(50, 1000, 100).Launched("alone", 1010, 1020, 5).Kernel("of nobody", 1030, 1);
  maker.Recording(1000, 1100);
  const Trace trace = maker.Make();
  const Scope scope(trace, {});
  std::string in;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] == Category::kKernel && scope.Has(i)) in += trace.NameOf(i) + " ";
  }
  EXPECT_EQ(in, "a alone of nobody ") << "a window of one step is counted whole";
  EXPECT_EQ(scope.left_out(), 1U);
}

TEST(ScopeTest, OneStepIsCountedWhole) {
  TraceMaker maker;
  maker.Step(1, 0, 100).Kernel("of nobody", 30, 5);
  const Trace trace = maker.Make();
  EXPECT_TRUE(Scope(trace, {}).Has(1));
}

TEST(ScopeTest, WhatADeviceDidBelongsToTheStepThatLaunchedIt) {
  TraceMaker maker;
  maker.Step(7, 0, 100).Step(8, 100, 100).Launched("k", 90, 120, 10);
  const Trace trace = maker.Make();
  const auto steps = StepsOfRows(trace, StepMarks(trace));
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.NameOf(i) != "k") continue;
    EXPECT_EQ(steps[i], 7);
  }
  EXPECT_EQ(StepAt(StepMarks(trace), 100'000), 8);
  EXPECT_EQ(StepAt(StepMarks(trace), 200'000), -1);
}

TEST(CallStackTest, ParentsAreTheInnermostOnTheThread) {
  TraceMaker maker;
  maker.Op("a", 0, 10).Op("b", 1, 4).Op("c", 2, 1).Op("d", 6, 4).Op("e", 10, 1);
  maker.On(Category::kOp, "other thread", 1, 20, {.tid = 2});
  const Trace trace = maker.Make();
  const CallStack stack = CallStackOf(trace, [](std::size_t) { return true; });
  const auto parent = [&](std::string_view name) -> std::string {
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (trace.NameOf(i) != name) continue;
      return stack.parent[i] == kNoRow ? "" : trace.NameOf(stack.parent[i]);
    }
    return "?";
  };
  EXPECT_EQ(parent("a"), "");
  EXPECT_EQ(parent("b"), "a");
  EXPECT_EQ(parent("c"), "b");
  EXPECT_EQ(parent("d"), "a");
  EXPECT_EQ(parent("e"), "");
  EXPECT_EQ(parent("other thread"), "");
}

TEST(CallStackTest, DepthIsNoMatterOfTheStack) {
  TraceMaker maker;
  constexpr int kDeep = 200'000;
  for (int i = 0; i < kDeep; ++i) maker.Op("f", i, 2.0 * (kDeep - i));
  const Trace trace = maker.Make();
  const CallStack stack = CallStackOf(trace, [](std::size_t) { return true; });
  EXPECT_EQ(stack.depth.back(), kDeep - 1U);
}

TEST(IntervalsTest, UnionIntersectionDifference) {
  const Spans a = Merged({{5, 7}, {0, 2}, {2, 3}, {6, 10}, {4, 4}});
  EXPECT_EQ(a, (Spans{{0, 3}, {5, 10}}));
  EXPECT_EQ(Length(a), 8);
  const Spans b = {{1, 6}, {7, 8}, {9, 12}};
  EXPECT_EQ(Intersection(a, b), (Spans{{1, 3}, {5, 6}, {7, 8}, {9, 10}}));
  EXPECT_EQ(Difference(a, b), (Spans{{0, 1}, {6, 7}, {8, 9}}));
  EXPECT_EQ(Difference({{0, 2}, {3, 5}}, {{1, 4}}), (Spans{{0, 1}, {4, 5}}));
  EXPECT_EQ(LengthWithin(a, {2, 6}), 2);
  EXPECT_EQ(LengthWithin(a, {20, 30}), 0);
}

TEST(DescribeTest, AsPandas) {
  const Description d = Describe({4, 1, 3, 2});
  EXPECT_EQ(d.count, 4U);
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_NEAR(d.std, 1.2909944, 1e-6);
  EXPECT_DOUBLE_EQ(d.q25, 1.75);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_DOUBLE_EQ(d.q75, 3.25);
  Moments m;
  for (const double v : {4.0, 1.0, 3.0, 2.0}) m.Add(v);
  EXPECT_NEAR(m.std(), d.std, 1e-12);
  EXPECT_EQ(Describe({}).count, 0U);
}

TEST(ShapeFlopsTest, Products) {
  const std::string_view mm = R"({"Input Dims":[[8,3],[3,4]],"Input type":["float","float"]})";
  EXPECT_EQ(ShapeCostOf("aten::mm", mm).flops, 2 * 8 * 3 * 4);
  EXPECT_EQ(ShapeCostOf("aten::mm", mm).bytes, 4 * (24 + 12 + 32));
  EXPECT_EQ(ShapeCostOf("aten::add", mm).flops, 0);
  const std::string_view bmm =
      R"({"Input dims":[[5,2,3],[5,3,4]],"Input type":["c10::Half","c10::Half"]})";
  EXPECT_EQ(ShapeCostOf("aten::bmm", bmm).flops, 2 * 5 * 2 * 3 * 4);
  EXPECT_EQ(ShapeCostOf("aten::bmm", bmm).bytes, 2 * (30 + 60 + 40));
  const std::string_view addmm = R"({"Input Dims":[[4],[8,3],[3,4],[],[]]})";
  EXPECT_EQ(ShapeCostOf("aten::addmm", addmm).flops, 2 * 8 * 3 * 4);
  EXPECT_EQ(ShapeCostOf("aten::mm", R"({"Input Dims":[[8,3)").flops, 0);
  EXPECT_EQ(ShapeCostOf("aten::mm", "").flops, 0);
}

TEST(ShapeFlopsTest, Convolution) {
  const std::string_view conv =
      R"({"Input Dims":[[2,3,8,8],[16,3,3,3],[16],[],[],[],[]],"Input type":["float"],)"
      R"("Concrete Inputs":["","","","[2, 2]","[1, 1]","[1, 1]","1"]})";
  // 4 x 4 places.
  EXPECT_EQ(ShapeCostOf("aten::conv2d", conv).flops, 2.0 * 2 * 16 * 16 * 3 * 3 * 3);
}

}  // namespace
}  // namespace telltale::analysis::trace
