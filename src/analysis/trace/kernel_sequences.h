// SPDX-License-Identifier: Apache-2.0
// Sequences of kernels that operators launch, and how often each occurs: where one comes again and
// again, one fused kernel could stand for it. HolisticTraceAnalysis' frequent kernel sequences.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

struct KernelSequence {
  std::string op;
  std::vector<std::string> kernels;  ///< By begin.
  std::uint64_t count = 0;
  Sum device_ns = 0;  ///< Of its kernels, all occurrences.
  Sum host_ns = 0;    ///< Of the operators.
};

/// Below host slices whose names hold `name`: of these the outermost ones, those at the smallest
/// depth at which any lies, which launch at least `min_length` pieces of work. A thread of the
/// backward pass hangs below the "## backward ##" ranges, else the step marks, of the thread that
/// has these. The most frequent first.
std::vector<KernelSequence> KernelSequencesOf(const Trace& trace, const Scope& scope,
                                              std::string_view name, std::size_t min_length);

}  // namespace telltale::analysis::trace
