// SPDX-License-Identifier: Apache-2.0
#include "stacks/phase_clock.h"

#include <fmt/format.h>

#include <algorithm>

namespace telltale::stacks {
namespace {

/// Spans may lie within each other: so many are looked at for the one that encloses a moment.
constexpr int kMostNested = 32;

}  // namespace

std::string_view PhaseClock::Text(std::string_view mode, std::string_view name) {
  const std::string text =
      mode == "TRAIN" || mode.empty() ? std::string(name) : fmt::format("{} {}", mode, name);
  return *texts_.insert(text).first;
}

void PhaseClock::AddSpan(const format::SpanRow& row) {
  if (row.category != "phase") return;
  Rank& rank = ranks_[row.rank];
  rank.spans.push_back(
      {row.time_ns, row.time_ns + row.duration_ns, row.step, 0, Text(row.mode, row.name)});
  rank.sorted = false;
}

void PhaseClock::AddStep(const format::StepRow& row) {
  Rank& rank = ranks_[row.rank];
  rank.steps.push_back({row.time_ns, row.time_ns + row.duration_ns, row.step,
                        row.duration_ns - row.other_ns, Text(row.mode, kOtherPhase)});
  rank.first_step_ns = std::min(rank.first_step_ns, row.time_ns);
  rank.sorted = false;
}

void PhaseClock::Sort(Rank* rank) {
  if (rank->sorted) return;
  const auto before = [](const Interval& a, const Interval& b) {
    // Of those that begin together the inner one comes last.
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  };
  std::sort(rank->spans.begin(), rank->spans.end(), before);
  std::sort(rank->steps.begin(), rank->steps.end(), before);
  rank->sorted = true;
}

Moment PhaseClock::At(std::int32_t rank_number, std::int64_t at_ns) {
  const auto found = ranks_.find(rank_number);
  if (found == ranks_.end()) return {kInitialization, -1};
  Rank& rank = found->second;
  Sort(&rank);
  const auto after = [](std::int64_t at, const Interval& one) { return at < one.begin_ns; };
  const auto enclosing = [&](const std::vector<Interval>& all, int most) -> const Interval* {
    auto at = std::upper_bound(all.begin(), all.end(), at_ns, after);
    for (int i = 0; i < most && at != all.begin(); ++i) {
      --at;
      if (at->end_ns > at_ns) return &*at;
    }
    return nullptr;
  };
  if (const Interval* span = enclosing(rank.spans, kMostNested)) return {span->name, span->step};
  const Interval* step = enclosing(rank.steps, 2);
  if (step == nullptr) {
    return {at_ns < rank.first_step_ns ? kInitialization : kBetweenSteps, -1};
  }
  std::int64_t recorded_ns = 0;
  auto at = std::upper_bound(rank.spans.begin(), rank.spans.end(), step->begin_ns - 1, after);
  for (; at != rank.spans.end() && at->begin_ns < step->end_ns; ++at) {
    recorded_ns += at->end_ns - at->begin_ns;
  }
  if (recorded_ns * 2 < step->phases_ns) return {kUnknownPhase, step->step};
  return {step->name, step->step};
}

void PhaseClock::DropBefore(std::int64_t at_ns) {
  for (auto& [number, rank] : ranks_) {
    const auto over = [&](const Interval& one) { return one.end_ns < at_ns; };
    // The step around the first moment that is asked for needs its spans.
    std::erase_if(rank.steps, over);
    std::int64_t keep_ns = at_ns;
    for (const Interval& step : rank.steps) keep_ns = std::min(keep_ns, step.begin_ns);
    std::erase_if(rank.spans, [&](const Interval& one) { return one.end_ns < keep_ns; });
  }
}

}  // namespace telltale::stacks
