// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/stragglers.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "analysis/trace/describe.h"
#include "analysis/trace/kernel_class.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {
namespace {

/// Shorter ones hold nobody up.
constexpr double kLeastShare = 0.01;

/// Of the times that the ranks have recorded, and the step that they mark there.
using MarkedStep = std::pair<std::size_t, std::int64_t>;

/// When the ranks recorded, merged: they do so together. Empty where none has several recordings:
/// then all is of one time, whatever their clocks say.
Spans TimesOf(const std::vector<RankCollectives>& ranks) {
  if (std::all_of(ranks.begin(), ranks.end(),
                  [](const RankCollectives& rank) { return rank.recorded.size() < 2; })) {
    return {};
  }
  Spans all;
  for (const RankCollectives& rank : ranks) {
    all.insert(all.end(), rank.recorded.begin(), rank.recorded.end());
  }
  return Merged(std::move(all));
}

/// Which of the times a rank's recording is of.
std::size_t TimeOf(const Spans& times, const RankCollectives& rank, std::size_t recording) {
  const auto after =
      std::upper_bound(times.begin(), times.end(), rank.recorded[recording].begin,
                       [](std::int64_t time, const Span& span) { return time < span.begin; });
  return static_cast<std::size_t>(after - times.begin());
}

}  // namespace

RankCollectives CollectivesOf(const Trace& trace, const Scope& scope,
                              const std::vector<std::int64_t>& steps) {
  RankCollectives out;
  out.rank = trace.rank;
  out.first_begin_ns = std::numeric_limits<std::int64_t>::max();
  out.last_end_ns = std::numeric_limits<std::int64_t>::min();
  const std::vector<StepMark> marks = StepMarks(trace);
  const std::vector<std::int64_t> step_of = StepsOfRows(trace, marks);
  const std::vector<KernelClass> classes = ClassesOf(trace);
  std::set<std::int64_t> wanted(steps.begin(), steps.end());
  if (wanted.empty()) {
    for (const StepMark& mark : marks) wanted.insert(mark.step);
  }
  std::set<RankCollectives::Step> seen;
  constexpr Span kNothing{std::numeric_limits<std::int64_t>::max(),
                          std::numeric_limits<std::int64_t>::min()};
  out.recorded.assign(trace.recording_count(), kNothing);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!scope.Has(i) || step_of[i] < 0 || !wanted.contains(step_of[i])) continue;
    const std::size_t recording = trace.RecordingAt(trace.begin_ns[i]);
    seen.insert({recording, step_of[i]});
    out.first_begin_ns = std::min(out.first_begin_ns, trace.begin_ns[i]);
    out.last_end_ns = std::max(out.last_end_ns, trace.end_ns(i));
    Span& span = out.recorded[recording];
    span.begin = std::min(span.begin, trace.begin_ns[i]);
    span.end = std::max(span.end, trace.end_ns(i));
    if (trace.OnDevice(i) && classes[i] == KernelClass::kCommunication) {
      out.kernels.push_back({recording, step_of[i], trace.LaneOf(i).stream, trace.NameOf(i),
                             trace.begin_ns[i], trace.duration_ns[i]});
    }
  }
  out.steps.assign(seen.begin(), seen.end());
  return out;
}

Stragglers StragglersOf(const std::vector<RankCollectives>& ranks, std::size_t candidates) {
  Stragglers out;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (const RankCollectives& rank : ranks) {
    first = std::min(first, rank.first_begin_ns);
    last = std::max(last, rank.last_end_ns);
  }
  const Spans times = TimesOf(ranks);
  std::set<MarkedStep> steps;
  for (const RankCollectives& rank : ranks) {
    for (const RankCollectives::Step& step : rank.steps) {
      steps.insert({TimeOf(times, rank, step.recording), step.step});
    }
  }
  if (steps.empty()) return out;
  const std::int64_t wall_ns = times.empty() ? last - first : Length(times);
  const double step_ns = static_cast<double>(wall_ns) / static_cast<double>(steps.size());
  out.step_ns = static_cast<std::int64_t>(step_ns);

  // The last long one of each rank, stream, name and step.
  using Collective = std::pair<std::int64_t, std::string>;  // Stream, name.
  using Kernel = RankCollectives::Kernel;
  std::map<Collective, std::map<MarkedStep, std::map<std::int32_t, Kernel>>> by_collective;
  for (const RankCollectives& rank : ranks) {
    for (const Kernel& kernel : rank.kernels) {
      if (static_cast<double>(kernel.duration_ns) < kLeastShare * step_ns) continue;
      const MarkedStep step{TimeOf(times, rank, kernel.recording), kernel.step};
      by_collective[{kernel.stream, kernel.name}][step][rank.rank] = kernel;
    }
  }
  double most = -1;
  const std::map<MarkedStep, std::map<std::int32_t, Kernel>>* judged = nullptr;
  for (const auto& [collective, by_step] : by_collective) {
    Moments deviations;
    for (const auto& [step, by_rank] : by_step) {
      if (by_rank.size() < 2) continue;
      Moments durations;
      for (const auto& [rank, kernel] : by_rank) {
        durations.Add(static_cast<double>(kernel.duration_ns) / step_ns);
      }
      deviations.Add(durations.std());
    }
    if (deviations.count() == 0 || deviations.mean() <= most) continue;
    most = deviations.mean();
    judged = &by_step;
    out.stream = collective.first;
    out.kernel = collective.second;
  }
  if (judged == nullptr) return out;
  struct Late {
    std::uint64_t steps = 0;
    Moments behind;
  };
  std::map<std::int32_t, Late> by_rank;
  for (const auto& [step, kernels] : *judged) {
    // Of several recordings, what one rank alone has seen says nothing of it.
    if (!times.empty() && kernels.size() < 2) continue;
    std::vector<std::int64_t> begins;
    for (const auto& [rank, kernel] : kernels) begins.push_back(kernel.begin_ns);
    std::sort(begins.begin(), begins.end(), std::greater<>());
    const std::int64_t threshold =
        begins[std::min(std::max<std::size_t>(candidates, 1), begins.size()) - 1];
    for (const auto& [rank, kernel] : kernels) {
      Late& late = by_rank[rank];
      if (kernel.begin_ns >= threshold) ++late.steps;
      late.behind.Add(static_cast<double>(kernel.begin_ns - begins.back()));
    }
  }
  for (const auto& [rank, late] : by_rank) {
    out.ranks.push_back({.rank = rank,
                         .steps = late.steps,
                         .late_share = late.behind.mean() / step_ns,
                         .late_ns = static_cast<std::int64_t>(late.behind.mean())});
  }
  std::stable_sort(out.ranks.begin(), out.ranks.end(),
                   [](const StragglerRank& a, const StragglerRank& b) {
                     if (a.steps != b.steps) return a.steps > b.steps;
                     return a.late_ns > b.late_ns;
                   });
  return out;
}

Result<Tables> RunStragglers(TraceSource& source, const Options& options) {
  constexpr std::size_t kCandidates = 2;
  std::vector<RankCollectives> ranks;
  Tables out;
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    ranks.push_back(CollectivesOf(trace, scope, options.steps));
  }
  const Stragglers found = StragglersOf(ranks, kCandidates);
  Table& judged = out.Add("judged_by", "The collective by which the ranks are judged",
                          {"kernel", "stream", "mean_step_ns"});
  Table& table = out.Add("stragglers", "Ranks, the likeliest straggler first",
                         {"rank", "late_steps", "mean_late_ns", "mean_late_share"});
  table.shown = options.top;
  if (found.kernel.empty()) {
    out.notes.emplace_back(
        "no collective kernel of at least 1 % of a step runs on two ranks or more: import the "
        "traces of several ranks, with step marks (profiler.step())");
    return out;
  }
  judged.Add({Text(found.kernel), found.stream, found.step_ns});
  for (const StragglerRank& one : found.ranks) {
    table.Add({Int(one.rank), Int(one.steps), one.late_ns, Real(one.late_share)});
  }
  return out;
}

}  // namespace telltale::analysis::trace
