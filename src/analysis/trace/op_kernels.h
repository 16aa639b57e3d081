// SPDX-License-Identifier: Apache-2.0
// Which kernels each operator launches itself, and how late: from the operator's begin to its first
// launch, and from that call's begin to the work's. HolisticTraceAnalysis' table of ATen operators,
// kernels and delays.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

struct OpKernels {
  std::string op;
  std::vector<std::string> kernels;  ///< By launch.
  std::uint64_t count = 0;
  double op_delay_ns = 0;       ///< Mean: begin of the operator to its first launch.
  double runtime_delay_ns = 0;  ///< Mean: begin of that launch to begin of the work.
  Sum device_ns = 0;            ///< Of the kernels in sum.
};

/// A launch is the innermost operator's whose name begins with `prefix` and that holds it on its
/// thread. The most frequent first.
std::vector<OpKernels> OpKernelsOf(const Trace& trace, const Scope& scope, std::string_view prefix);

}  // namespace telltale::analysis::trace
