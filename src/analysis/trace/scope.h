// SPDX-License-Identifier: Apache-2.0
// Which slices of a trace an analysis counts. A profiler stops in the middle of things: kernels of
// the last step that it marks may be missing. So, as HolisticTraceAnalysis does, the last marked
// step is left out, and so is what a device did without a launch that is in scope. Of several
// recordings, of each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

/// Whether the row lies on a stream of a device: work, and marks of waits for a stream. Those for a
/// context or an event lie on none, whatever number the source gives them.
bool OnStream(const Trace& trace, std::size_t row);

/// A profiler's mark of a step ("ProfilerStep#551").
struct StepMark {
  std::int64_t step = -1;  ///< The number in its name, else its place.
  std::uint32_t row = kNoRow;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// By begin.
std::vector<StepMark> StepMarks(const Trace& trace);

/// The step whose mark holds `time_ns`, the last of those that do; -1 where none does.
std::int64_t StepAt(const std::vector<StepMark>& marks, std::int64_t time_ns);

/// Of every row: of the host by its begin, of a device (and of sync marks on a stream) by its
/// launch's; -1 where none.
std::vector<std::int64_t> StepsOfRows(const Trace& trace, const std::vector<StepMark>& marks);

struct ScopeOptions {
  bool last_step = false;   ///< Count the last marked step too.
  bool everything = false;  ///< Count every slice, launched by one in the trace or not.
};

class Scope {
 public:
  Scope() = default;
  Scope(const Trace& trace, const ScopeOptions& options);

  bool Has(std::size_t row) const { return all_ || in_[row]; }
  bool all() const { return all_; }
  /// Device slices left out, as the last step's or without a launch.
  std::uint64_t left_out() const { return left_out_; }

 private:
  bool all_ = true;
  std::uint64_t left_out_ = 0;
  std::vector<bool> in_;
};

}  // namespace telltale::analysis::trace
