// SPDX-License-Identifier: Apache-2.0
// Why a stream stood idle between two pieces of work, by HolisticTraceAnalysis' rules. Host wait:
// the call that launched the later one began after the earlier one had ended. Kernel wait:
// otherwise, and the gap is below a threshold, what two launches in a row cost. Other: the rest,
// for example a wait for another stream.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/trace/describe.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

enum class IdleCause : std::uint8_t { kHostWait, kKernelWait, kOther };
inline constexpr std::array<std::string_view, 3> kIdleCauseNames = {"host_wait", "kernel_wait",
                                                                    "other"};

struct StreamIdle {
  std::int32_t device = -1;
  std::int64_t stream = -1;
  std::array<Sum, 3> sum_ns{};        ///< By cause. Overlaps on the stream count negative.
  std::array<Description, 3> gaps{};  ///< Of the gaps in ns, by cause.
};
std::vector<StreamIdle> IdleBreakdownOf(const Trace& trace, const Scope& scope,
                                        std::int64_t kernel_gap_ns);

}  // namespace telltale::analysis::trace
