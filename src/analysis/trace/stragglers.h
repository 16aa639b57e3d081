// SPDX-License-Identifier: Apache-2.0
// Ranks that others wait for: in a collective all end together, so who begins last came late.
// HolisticTraceAnalysis' potential stragglers. The clocks of the ranks are taken as the traces have
// them.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

/// What is kept of a rank: its collective kernels and when its steps ran.
struct RankCollectives {
  struct Kernel {
    std::size_t recording = 0;
    std::int64_t step = -1;
    std::int64_t stream = -1;
    std::string name;
    std::int64_t begin_ns = 0;
    std::int64_t duration_ns = 0;
  };
  std::int32_t rank = 0;
  struct Step {
    std::size_t recording = 0;  ///< Into recorded.
    std::int64_t step = -1;
    auto operator<=>(const Step&) const = default;
  };
  std::vector<Step> steps;          ///< In which slices lie; as asked for.
  std::int64_t first_begin_ns = 0;  ///< Of the slices in these steps.
  std::int64_t last_end_ns = 0;
  Spans recorded;               ///< The same of each recording; of one without such slices nothing.
  std::vector<Kernel> kernels;  ///< By begin.
};
/// Of these steps, or of all that the trace marks.
RankCollectives CollectivesOf(const Trace& trace, const Scope& scope,
                              const std::vector<std::int64_t>& steps);

struct StragglerRank {
  std::int32_t rank = 0;
  std::uint64_t steps = 0;   ///< In which it was among the last to begin.
  double late_share = 0;     ///< Mean begin behind the first rank's, over a step's mean length.
  std::int64_t late_ns = 0;  ///< The same in ns.
};
struct Stragglers {
  std::string kernel;  ///< The collective that was judged by; empty where there is none.
  std::int64_t stream = -1;
  std::int64_t step_ns = 0;          ///< Mean length of a step.
  std::vector<StragglerRank> ranks;  ///< The likeliest first.
};
/// Judges by the kernel and stream whose duration differs most between ranks, of those longer than
/// 1 % of a step, the last one of each step. `candidates`: how many of a step are late. Where a
/// rank has several recordings, those of the ranks that overlap are of one time, and what one rank
/// alone has recorded is compared with nothing: step numbers may begin anew.
Stragglers StragglersOf(const std::vector<RankCollectives>& ranks, std::size_t candidates);

}  // namespace telltale::analysis::trace
