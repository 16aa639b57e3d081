// SPDX-License-Identifier: Apache-2.0
// Time in ranges that the user or the framework named (record_function), on the host and as a
// profiler projects them onto the device. HolisticTraceAnalysis' user annotation breakdown.
#pragma once
#include <string>
#include <vector>

#include "analysis/trace/describe.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

struct AnnotationTime {
  std::string name;
  bool device = false;
  Moments durations_ns;
};
/// By host and device, then by time in sum.
std::vector<AnnotationTime> AnnotationTimesOf(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
