// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace telltale::analysis::trace {

Cell Share(double part, double whole) {
  if (!(whole > 0)) return {};
  return part / whole;
}

Cell Real(double value) {
  if (!std::isfinite(value)) return {};
  return value;
}

void NoteScope(const Trace& trace, const Scope& scope, Tables* out) {
  if (scope.left_out() == 0) return;
  out->notes.push_back(fmt::format(
      "rank {}: {} slices of devices are left out: launched in the last marked step, after it or "
      "before the trace began; --last-step counts those of the last step, --everything all",
      trace.rank, scope.left_out()));
}

void NoteNoDevice(const Trace& trace, Tables* out) {
  out->notes.push_back(
      fmt::format("rank {}: the trace holds no work of a device: record one with kernels "
                  "(activities CPU and CUDA of torch.profiler)",
                  trace.rank));
}

std::vector<StreamRows> DeviceStreams(const Trace& trace, const Scope& scope) {
  std::map<std::pair<std::int32_t, std::int64_t>, StreamRows> by_stream;
  std::vector<StreamRows*> of_lane(trace.lanes.size(), nullptr);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i)) continue;
    StreamRows*& rows = of_lane[trace.lane[i]];
    if (rows == nullptr) {
      const Lane& lane = trace.LaneOf(i);
      rows = &by_stream[{lane.device, lane.stream}];
      rows->device = lane.device;
      rows->stream = lane.stream;
    }
    rows->rows.push_back(static_cast<std::uint32_t>(i));
  }
  std::vector<StreamRows> out;
  for (auto& [key, rows] : by_stream) {
    // On a stream one follows the other: one of no length at the begin of another came before it.
    std::stable_sort(rows.rows.begin(), rows.rows.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (trace.begin_ns[a] != trace.begin_ns[b]) return trace.begin_ns[a] < trace.begin_ns[b];
      return trace.duration_ns[a] < trace.duration_ns[b];
    });
    out.push_back(std::move(rows));
  }
  return out;
}

bool IsLaunchCall(std::string_view name) {
  static constexpr std::array<std::string_view, 14> kCalls = {
      "cudaLaunchKernel",
      "cudaLaunchKernelExC",
      "cuLaunchKernel",
      "cuLaunchKernelEx",
      "cudaLaunchCooperativeKernel",
      "cudaMemcpyAsync",
      "cudaMemsetAsync",
      "hipLaunchKernel",
      "hipExtModuleLaunchKernel",
      "hipExtLaunchKernel",
      "hipMemcpyAsync",
      "hipMemsetAsync",
      "hipMemcpyWithStream",
      "runFunction - job_prep_and_submit_for_execution",
  };
  return std::find(kCalls.begin(), kCalls.end(), name) != kCalls.end();
}

}  // namespace telltale::analysis::trace
