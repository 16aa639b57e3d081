// SPDX-License-Identifier: Apache-2.0
// How much of the communication is hidden: time in which communication and computation kernels run,
// over time in which communication runs. HolisticTraceAnalysis' communication computation overlap.
#pragma once
#include <cstdint>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

struct CommunicationOverlap {
  std::int64_t communication_ns = 0;
  std::int64_t computation_ns = 0;
  std::int64_t overlap_ns = 0;
};
CommunicationOverlap CommunicationOverlapOf(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
