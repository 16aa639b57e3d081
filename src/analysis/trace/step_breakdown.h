// SPDX-License-Identifier: Apache-2.0
// Where the wall time of a step goes, each moment under one word, by strict priority: kernel, copy,
// set, communication, runtime call, data loading, operators, other. Each takes what those before it
// left, so that they add up to the step. The definition of the PyTorch profiler's TensorBoard
// plug-in
// ("step time breakdown").
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/trace/intervals.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

enum class StepRole : std::uint8_t {
  kKernel,
  kMemcpy,
  kMemset,
  kCommunication,
  kRuntime,
  kDataLoader,
  kCpuExec,
  kOther,
};
inline constexpr std::array<std::string_view, 8> kStepRoleNames = {
    "kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu_exec", "other"};

struct StepCost {
  std::int64_t step = -1;
  Span span;  ///< From the mark's begin, or the end of the step before, to the end of its work.
  std::array<std::int64_t, kStepRoleNames.size()> role_ns{};  ///< Add up to the span.
  // Times that may overlap: of kernels (of the host's operators where there are none), of
  // communication, of both, of neither.
  std::int64_t computation_ns = 0;
  std::int64_t communication_ns = 0;
  std::int64_t overlap_ns = 0;
  std::int64_t rest_ns = 0;
};

/// Steps as the plug-in has them: a step lasts until the last work that it launched has ended, the
/// next one begins there, and a last step that launched less than 80 % of the one before it is left
/// out, as the profiler missed the rest. Without marks, one from the first operator to the last.
struct StepBreakdown {
  std::vector<StepCost> steps;
  std::size_t left_out = 0;
};
/// Of several recordings, each by itself.
StepBreakdown StepBreakdownOf(const Trace& trace);
/// From the first to the last step of each recording, merged.
Spans StepWindows(const Trace& trace, const StepBreakdown& breakdown);

/// Whether a host range is the data loader's wait for the next batch.
bool IsDataLoaderWait(std::string_view name);

}  // namespace telltale::analysis::trace
