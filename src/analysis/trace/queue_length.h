// SPDX-License-Identifier: Apache-2.0
// Launches outstanding on each stream: one more when a call that launches begins, one less when
// what it launched begins. A device holds some 1024 of them a stream, and then blocks the host.
// HolisticTraceAnalysis' queue length.
#pragma once
#include <cstdint>
#include <vector>

#include "analysis/trace/describe.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

/// The length from `time_ns` on; launches come before begins at the same moment.
struct QueuePoint {
  std::int64_t time_ns = 0;
  std::int64_t length = 0;
  std::uint32_t row = kNoRow;  ///< The call or the work.
};
struct StreamQueue {
  std::int32_t device = -1;
  std::int64_t stream = -1;
  std::vector<QueuePoint> points;
};
/// Streams on which something was launched.
std::vector<StreamQueue> QueueLengthOf(const Trace& trace, const Scope& scope);

/// Of the lengths after each change, each counted once, however long it lasted.
Description QueueSummary(const StreamQueue& queue);
/// ns with at least `full` outstanding, within the trace's recordings.
std::int64_t TimeFull(const Trace& trace, const StreamQueue& queue, std::int64_t full);

}  // namespace telltale::analysis::trace
