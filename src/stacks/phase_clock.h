// SPDX-License-Identifier: Apache-2.0
// In which phase of which step a rank was at a moment, going by the spans and steps of the run.
// Thread safety: none. Memory: the spans and steps since what DropBefore was told.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "format/records.gen.h"

namespace telltale::stacks {

inline constexpr std::string_view kInitialization = "initialization";
inline constexpr std::string_view kBetweenSteps = "between steps";
inline constexpr std::string_view kOtherPhase = "other";
/// The step has such a phase, and its span was left out by the span budget.
inline constexpr std::string_view kUnknownPhase = "phase not recorded";

struct Moment {
  std::string_view phase;  ///< Lives as long as the clock.
  std::int64_t step = -1;
  friend bool operator==(const Moment&, const Moment&) = default;
};

class PhaseClock {
 public:
  void AddSpan(const format::SpanRow& row);
  void AddStep(const format::StepRow& row);
  /// Of the run's clock. What is not a TRAIN step has its mode before the phase: "EVAL forward".
  Moment At(std::int32_t rank, std::int64_t at_ns);
  /// Nobody asks for what was before.
  void DropBefore(std::int64_t at_ns);

 private:
  struct Interval {
    std::int64_t begin_ns, end_ns, step;
    std::int64_t phases_ns;  ///< Of a step: of its phases but `other`.
    std::string_view name;   ///< Of a step: `other`, with its mode.
  };
  struct Rank {
    std::vector<Interval> spans, steps;
    bool sorted = true;
    std::int64_t first_step_ns = INT64_MAX;
  };
  std::string_view Text(std::string_view mode, std::string_view name);
  static void Sort(Rank* rank);

  std::map<std::int32_t, Rank> ranks_;
  std::set<std::string, std::less<>> texts_;
};

}  // namespace telltale::stacks
