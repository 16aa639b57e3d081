// SPDX-License-Identifier: Apache-2.0
// How well a device was used, as the PyTorch profiler's TensorBoard plug-in estimates it from
// kernels alone, over the steps of its step time breakdown, of each recording from its first to its
// last.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

/// Shares between 0 and 1, NaN where the trace does not say.
struct GpuMetrics {
  std::int32_t device = -1;
  double utilisation = 0;        ///< Time with a kernel, over the time of all steps.
  double sm_efficiency = 0;      ///< Mean of min(blocks per SM of what runs, 1) over that time.
  double occupancy = 0;          ///< Mean est. achieved occupancy, weighted by duration.
  double tensor_core_share = 0;  ///< Kernel time whose names say tensor cores, of all kernels.
  double tensor_core_wide = 0;   ///< The same by a longer list that knows newer libraries.
  Sum kernel_ns = 0;             ///< Durations in sum, the whole trace.
};
struct GpuMetricsOfRank {
  std::vector<GpuMetrics> devices;
  /// Share of kernel time that operators launch which could use tensor cores (the plug-in's list).
  double eligible_share = 0;
};
/// REQUIRES: loaded with facts.
GpuMetricsOfRank GpuMetricsOf(const Trace& trace);
/// GpuMetricsOfRank::eligible_share alone, of any trace.
double EligibleShareOf(const Trace& trace);

/// By the 18 words of the plug-in, which know NVIDIA's libraries up to 2021.
bool NamesTensorCores(std::string_view kernel);
/// Those, and names of cuBLASLt's nvjet kernels, CUTLASS 3, FlashAttention and AMD's matrix cores.
bool NamesTensorCoresWide(std::string_view kernel);

}  // namespace telltale::analysis::trace
