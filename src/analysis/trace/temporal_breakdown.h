// SPDX-License-Identifier: Apache-2.0
// What the devices of a rank did between the begin of their first piece of work and the end of
// their last: computing (any computation kernel running, whatever else), other work alone
// (communication, copies), nothing. HolisticTraceAnalysis' temporal breakdown. Of several
// recordings, of each by itself, added up.
#pragma once
#include <cstdint>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

/// ns; the three add up to `span_ns`.
struct TemporalBreakdown {
  Sum span_ns = 0;
  Sum idle_ns = 0;
  Sum compute_ns = 0;
  Sum non_compute_ns = 0;
};

/// All zero where no device worked.
TemporalBreakdown TemporalBreakdownOf(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
