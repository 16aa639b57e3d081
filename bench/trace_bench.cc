// SPDX-License-Identifier: Apache-2.0
// Analyses of a trace of a million slices: making it ready (what loading a run does behind the
// columns), and each analysis alone. What advice needs together is to take at most a second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/trace/annotations.h"
#include "analysis/trace/critical_path.h"
#include "analysis/trace/gpu_metrics.h"
#include "analysis/trace/idle_breakdown.h"
#include "analysis/trace/kernel_breakdown.h"
#include "analysis/trace/kernel_sequences.h"
#include "analysis/trace/launch_stats.h"
#include "analysis/trace/op_kernels.h"
#include "analysis/trace/overlap.h"
#include "analysis/trace/queue_length.h"
#include "analysis/trace/roofline.h"
#include "analysis/trace/step_breakdown.h"
#include "analysis/trace/temporal_breakdown.h"
#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

constexpr int kOperators = 250'000;  ///< Each with one nested in it, a call and a kernel.
constexpr int kOperatorsAStep = 25'000;

Trace Million() {
  TraceMaker maker(0, {.flops = true, .facts = true});
  std::vector<std::string> ops;
  std::vector<std::string> kernels;
  for (int i = 0; i < 300; ++i) {
    ops.push_back("aten::op" + std::to_string(i));
    kernels.push_back("void kernel_" + std::to_string(i) + "<float, 4>(int, float*)");
  }
  const std::string_view facts =
      R"({"grid":[80,1,1],"block":[256,1,1],"blocks per SM":0.75,"warps per SM":6.0,)"
      R"("registers per thread":32,"est. achieved occupancy %":37})";
  double device = 20;
  for (int i = 0; i < kOperators; ++i) {
    const double at = i * 20.0;
    if (i % kOperatorsAStep == 0) maker.Step(i / kOperatorsAStep, at, kOperatorsAStep * 20.0);
    const auto which = static_cast<std::size_t>(i) % ops.size();
    maker.On(Category::kOp, ops[which], at, 18, {.external = i, .flops = 1e6});
    maker.On(Category::kOp, "aten::inner", at + 1, 15, {.external = i});
    const std::int64_t correlation = 1'000'000 + i;
    maker.Call("cudaLaunchKernel", at + 3, 5, correlation);
    device = std::max(device + 1, at + 10);
    const double length = 5 + i % 17;
    maker.Work(Category::kKernel, kernels[which], device, length,
               {.correlation = correlation, .stream = 7 + i % 2 * 13, .args = facts});
    device += length;
  }
  return maker.Make();
}

const Trace& TheTrace() {
  static const Trace trace = Million();
  return trace;
}
const Scope& TheScope() {
  static const Scope scope(TheTrace(), {});
  return scope;
}

void Ready(benchmark::State& state) {
  for (auto _ : state) {
    const Trace trace = Million();
    benchmark::DoNotOptimize(trace.launch.data());
    state.SetItemsProcessed(state.items_processed() + static_cast<std::int64_t>(trace.size()));
  }
}
BENCHMARK(Ready)->Unit(benchmark::kMillisecond);

/// One analysis; items are slices.
#define TELLTALE_TRACE_BENCH(name, call)                                    \
  void name(benchmark::State& state) {                                      \
    const Trace& trace = TheTrace();                                        \
    const Scope& scope = TheScope();                                        \
    for (auto _ : state) {                                                  \
      static_cast<void>(scope);                                             \
      auto result = call;                                                   \
      benchmark::DoNotOptimize(&result);                                    \
    }                                                                       \
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * \
                            static_cast<std::int64_t>(trace.size()));       \
  }                                                                         \
  BENCHMARK(name)->Unit(benchmark::kMillisecond)

TELLTALE_TRACE_BENCH(MakeScope, Scope(trace, {}));
TELLTALE_TRACE_BENCH(Steps, StepBreakdownOf(trace));
TELLTALE_TRACE_BENCH(Gpu, GpuMetricsOf(trace));
TELLTALE_TRACE_BENCH(Temporal, TemporalBreakdownOf(trace, scope));
TELLTALE_TRACE_BENCH(Kernels, KernelStatisticsOf(trace, scope));
TELLTALE_TRACE_BENCH(Classes, OverlapTimesOf(ClassTimes(trace, scope)));
TELLTALE_TRACE_BENCH(Idle, IdleBreakdownOf(trace, scope, 30));
TELLTALE_TRACE_BENCH(Hidden, CommunicationOverlapOf(trace, scope));
TELLTALE_TRACE_BENCH(Launches, LaunchesOf(trace, scope));
TELLTALE_TRACE_BENCH(Queue, QueueLengthOf(trace, scope));
TELLTALE_TRACE_BENCH(Sequences, KernelSequencesOf(trace, scope, "aten::op", 1));
TELLTALE_TRACE_BENCH(Ops, OpKernelsOf(trace, scope, "aten::"));
TELLTALE_TRACE_BENCH(Ranges, AnnotationTimesOf(trace, scope));
TELLTALE_TRACE_BENCH(Roof, RooflineOf(trace, scope));
TELLTALE_TRACE_BENCH(Critical, CriticalPath::Of(trace, scope, {0, INT64_MAX}));

}  // namespace
}  // namespace telltale::analysis::trace

BENCHMARK_MAIN();
