// SPDX-License-Identifier: Apache-2.0
// Time of the devices by class of kernel, each moment under the classes that run in it
// ("computation overlapping communication"), and statistics of each kernel. HolisticTraceAnalysis'
// kernel breakdown.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/describe.h"
#include "analysis/trace/kernel_class.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

/// ns by set of classes that run: bit 0 computation, bit 1 communication, bit 2 memory.
using OverlapTimes = std::array<std::int64_t, 8>;
OverlapTimes OverlapTimesOf(const std::array<Spans, 3>& classes);
/// "computation overlapping communication"; empty for none.
std::string OverlapName(std::size_t classes);

struct KernelStatistics {
  std::string name;
  KernelClass of = KernelClass::kCompute;
  Moments durations_ns;
};
/// Each name of device work in the scope, those that take longest in sum first.
std::vector<KernelStatistics> KernelStatisticsOf(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
