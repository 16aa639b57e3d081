// SPDX-License-Identifier: Apache-2.0
// Launches and what they launched: how long the call took, how long the work, and the delay between
// the call's end and the work's begin (not below 0). HolisticTraceAnalysis' kernel launch
// statistics.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

struct Launch {
  std::uint32_t call = kNoRow;
  std::uint32_t work = kNoRow;
  std::int64_t call_ns = 0;
  std::int64_t work_ns = 0;
  std::int64_t delay_ns = 0;
};
/// One for each piece of device work in the scope whose launch is in the trace, by begin of it. A
/// call that launches several (a graph) has one for each.
std::vector<Launch> LaunchesOf(const Trace& trace, const Scope& scope);

struct LaunchSummary {
  std::uint64_t launches = 0;
  std::uint64_t short_kernels = 0;  ///< Work shorter than its call, which is no outlier.
  std::uint64_t slow_calls = 0;     ///< The call longer than the cutoff.
  std::uint64_t delayed = 0;        ///< The delay longer than the cutoff.
};
LaunchSummary SummaryOf(const std::vector<Launch>& launches, std::int64_t runtime_cutoff_ns,
                        std::int64_t delay_cutoff_ns);

}  // namespace telltale::analysis::trace
