// SPDX-License-Identifier: Apache-2.0
// Kernel sequences, operators' kernels, annotations, trace diff, roofline.
#include <gtest/gtest.h>

#include "analysis/trace/annotations.h"
#include "analysis/trace/device_peaks.h"
#include "analysis/trace/kernel_sequences.h"
#include "analysis/trace/op_kernels.h"
#include "analysis/trace/roofline.h"
#include "analysis/trace/trace_diff.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

TEST(KernelSequencesTest, FrequentOnesBelowTheOutermostOperator) {
  TraceMaker maker;
  for (const double at : {0.0, 100.0}) {
    maker.Op("aten::linear", at, 50).Op("aten::linear_inner", at + 1, 40);
    maker.Launched("a", at + 2, at + 60, 5);
    maker.Launched("b", at + 4, at + 66, 5);
    maker.Launched("a", at + 6, at + 72, 5);
  }
  maker.Op("aten::linear", 200, 50).Launched("a", 202, 260, 5);  // Too short.
  const Trace trace = maker.Make();
  const auto sequences = KernelSequencesOf(trace, Scope(), "linear", 3);
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(sequences[0].op, "aten::linear");
  EXPECT_EQ(sequences[0].kernels, (std::vector<std::string>{"a", "b", "a"}));
  EXPECT_EQ(sequences[0].count, 2U);
  EXPECT_EQ(sequences[0].device_ns, 30'000);
  EXPECT_EQ(sequences[0].host_ns, 100'000);
  EXPECT_TRUE(KernelSequencesOf(trace, Scope(), "nobody", 3).empty());
}

TEST(OpKernelsTest, TheInnermostOperatorLaunches) {
  TraceMaker maker;
  maker.Op("aten::linear", 0, 50).Op("aten::addmm", 4, 40);
  maker.Launched("gemm", 10, 20, 5);
  maker.Launched("bias", 14, 30, 5);
  maker.Op("aten::addmm", 100, 40).Launched("gemm", 104, 120, 5);
  maker.Launched("bias", 108, 130, 5);
  const Trace trace = maker.Make();
  const auto ops = OpKernelsOf(trace, Scope(), "aten::");
  ASSERT_EQ(ops.size(), 1U);
  EXPECT_EQ(ops[0].op, "aten::addmm");
  EXPECT_EQ(ops[0].kernels, (std::vector<std::string>{"gemm", "bias"}));
  EXPECT_EQ(ops[0].count, 2U);
  EXPECT_DOUBLE_EQ(ops[0].op_delay_ns, 5'000);        // 6 and 4 us.
  EXPECT_DOUBLE_EQ(ops[0].runtime_delay_ns, 13'000);  // 10 and 16 us.
  EXPECT_EQ(ops[0].device_ns, 20'000);
}

TEST(AnnotationsTest, HostAndDevice) {
  TraceMaker maker;
  maker.On(Category::kAnnotation, "forward", 0, 10, {.kind = "user_annotation"});
  maker.On(Category::kAnnotation, "forward", 20, 30, {.kind = "user_annotation"});
  maker.Work(Category::kDeviceAnnotation, "forward", 5, 50, {});
  maker.Op("aten::mm", 1, 5);
  const Trace trace = maker.Make();
  const auto times = AnnotationTimesOf(trace, Scope());
  ASSERT_EQ(times.size(), 2U);
  EXPECT_FALSE(times[0].device);
  EXPECT_EQ(times[0].durations_ns.sum(), 40'000);
  EXPECT_EQ(times[0].durations_ns.count(), 2U);
  EXPECT_TRUE(times[1].device);
  EXPECT_EQ(times[1].durations_ns.sum(), 50'000);
}

TEST(TraceDiffTest, AddedDeletedMoreFewerUnchanged) {
  TraceMaker a;
  a.Step(1, 0, 100).Op("same", 1, 5).Op("gone", 10, 5).Op("fewer", 20, 5).Op("fewer", 30, 5);
  a.Op("more", 40, 5).Step(2, 100, 100).Op("of the second step", 110, 5);
  a.Launched("kernel<float>(int)", 50, 120, 10);
  TraceMaker b;
  b.Step(5, 0, 100).Op("same", 1, 9).Op("new", 10, 50).Op("fewer", 20, 5);
  b.Op("more", 40, 5).Op("more", 60, 5).Launched("kernel<double>(int)", 65, 70, 12);
  const Trace control = a.Make();
  const Trace test = b.Make();
  const auto change = [&](const std::vector<OpDiff>& diffs, std::string_view name) {
    for (const OpDiff& d : diffs) {
      if (d.name == name) return std::string(kOpChangeNames[static_cast<std::size_t>(d.change())]);
    }
    return std::string("nothing");
  };
  const auto all = TraceDiffOf(control, test, {}, {}, DiffDevice::kAll, false);
  EXPECT_EQ(all[0].name, "ProfilerStep#1");
  EXPECT_EQ(change(all, "new"), "added");
  EXPECT_EQ(change(all, "gone"), "deleted");
  EXPECT_EQ(change(all, "more"), "increased");
  EXPECT_EQ(change(all, "fewer"), "decreased");
  EXPECT_EQ(change(all, "same"), "unchanged");
  EXPECT_EQ(change(all, "of the second step"), "nothing");
  EXPECT_EQ(change(all, "kernel<float>(int)"), "deleted");

  const auto kernels = TraceDiffOf(control, test, {1}, {5}, DiffDevice::kGpu, true);
  ASSERT_EQ(kernels.size(), 1U);
  EXPECT_EQ(kernels[0].name, "kernel");
  EXPECT_EQ(kernels[0].difference_ns(), 2'000);
}

TEST(TraceDiffTest, ShortNames) {
  EXPECT_EQ(ShortName("void at::native::f<int, g<float>>(int*)"), "at::native::f");
  EXPECT_EQ(ShortName("aten::add"), "aten::add");
  EXPECT_EQ(ShortName("Memcpy HtoD (Pageable -> Device)"), "Memcpy HtoD (Pageable -> Device)");
  EXPECT_EQ(ShortName("())>>>"), "");
}

TEST(RooflineTest, RatesOfOperatorsAndTheShareOfThePeak) {
  TraceMaker maker(0, {.flops = true});
  maker.Step(1, 0, 100);
  maker.On(Category::kOp, "aten::linear", 10, 20, {.flops = 4e6});
  maker.On(Category::kOp, "aten::addmm", 11, 10, {.flops = 4e6});  // Counted by what holds it.
  maker.Launched("gemm", 12, 40, 20);
  maker.On(Category::kOp, "aten::mm", 60, 10,
           {.args = R"({"Input Dims":[[10,20],[20,30]],"Input type":["float"]})"});
  const Trace trace = maker.Make();
  const Roofline r = RooflineOf(trace, Scope());
  ASSERT_EQ(r.ops.size(), 2U);
  EXPECT_EQ(r.ops[0].name, "aten::linear");
  EXPECT_EQ(r.ops[0].device_ns, 20'000);
  EXPECT_DOUBLE_EQ(r.ops[0].rate(), 2e11);
  EXPECT_EQ(r.ops[1].flops, 12'000);
  EXPECT_DOUBLE_EQ(r.ops[1].intensity(), 12'000 / (4.0 * (200 + 600 + 300)));
  EXPECT_DOUBLE_EQ(r.flops, 4'012'000);
  EXPECT_EQ(r.wall_ns, 100'000);
}

TEST(DevicePeaksTest, TheLongestNameWins) {
  EXPECT_EQ(FindPeak("NVIDIA A100-SXM4-80GB")->gbps, 2039);
  EXPECT_EQ(FindPeak("NVIDIA A100-PG509-200")->gbps, 1555);
  EXPECT_EQ(FindPeak("nvidia h200")->name, "H200");
  EXPECT_EQ(FindPeak("an abacus"), nullptr);
  EXPECT_EQ(PeakOf(*FindPeak("V100"), "tf32"), 15.7);
  EXPECT_EQ(PeakOf(*FindPeak("H100"), "half"), 989);
}

}  // namespace
}  // namespace telltale::analysis::trace
