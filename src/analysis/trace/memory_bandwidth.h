// SPDX-License-Identifier: Apache-2.0
// Bandwidth of copies and sets over time, by kind ("Memcpy HtoD"): the sum of those that run at
// each moment. HolisticTraceAnalysis' memory bandwidth counter.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/trace/describe.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

/// GB/s (10^9 bytes) from `time_ns` on.
struct BandwidthPoint {
  std::int64_t time_ns = 0;
  double gbps = 0;
};
struct CopyBandwidth {
  std::string kind;
  std::uint64_t copies = 0;
  Sum bytes = 0;
  Sum busy_ns = 0;  ///< Their durations in sum.
  std::vector<BandwidthPoint> points;
};
/// By kind. The bandwidth is what the source states, else bytes over duration; one of no length
/// counts as one of a microsecond. REQUIRES: loaded with bytes and facts.
std::vector<CopyBandwidth> MemoryBandwidthOf(const Trace& trace, const Scope& scope);

/// Of the values above zero after each change.
Description BandwidthSummary(const CopyBandwidth& copies);

}  // namespace telltale::analysis::trace
