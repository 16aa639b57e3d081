// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/step_breakdown.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include "analysis/trace/kernel_class.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "analysis/trace/scope.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr double kCompleteShare = 0.8;
constexpr std::size_t kRoles = kStepRoleNames.size() - 1;  ///< But kOther, which is the rest.

bool IsCollectiveOp(std::string_view name) {
  return name.starts_with("nccl:") || name.starts_with("gloo:") || name.starts_with("c10d::") ||
         name == "record_param_comms";
}

/// The work that one call of the device's API launched.
struct Launched {
  std::int64_t first_begin = kNever;
  std::int64_t last_end = std::numeric_limits<std::int64_t>::min();
  std::uint32_t count = 0;
};

/// Lanes whose `data` slices are waits of the steps: those of the processes that mark steps, and
/// all where none does. What a loader's worker does beside them is no wait.
std::vector<bool> WaitingLanes(const Trace& trace) {
  std::set<std::int64_t> pids;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] == Category::kStep && trace.LaneOf(i).device < 0) {
      pids.insert(trace.LaneOf(i).pid);
    }
  }
  std::vector<bool> out(trace.lanes.size(), true);
  for (std::size_t i = 0; i < out.size() && !pids.empty(); ++i) {
    out[i] = pids.contains(trace.lanes[i].pid);
  }
  return out;
}

std::array<Spans, kRoles> RoleTimes(const Trace& trace) {
  std::vector<bool> collective_op(trace.names.size());
  std::vector<bool> loader(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    collective_op[i] = IsCollectiveOp(trace.names[i]);
    loader[i] = IsDataLoaderWait(trace.names[i]);
  }
  // Kernels that a collective's operator launched, whatever their names. By recording: profilers
  // count operators anew in each.
  std::vector<std::unordered_set<std::int64_t>> collectives(trace.recording_count());
  const auto recording_of = [&](std::size_t row) { return trace.RecordingAt(trace.begin_ns[row]); };
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.external[i] == 0 || trace.OnDevice(i)) continue;
    if (trace.category[i] == Category::kRuntime) continue;
    if (collective_op[trace.name[i]]) collectives[recording_of(i)].insert(trace.external[i]);
  }
  const std::vector<KernelClass> classes = ClassesOf(trace);
  const std::vector<bool> waits = WaitingLanes(trace);
  std::array<Spans, kRoles> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    StepRole role = StepRole::kOther;
    switch (trace.category[i]) {
      case Category::kKernel:
        role = classes[i] == KernelClass::kCommunication ||
                       collectives[recording_of(i)].contains(trace.external[i])
                   ? StepRole::kCommunication
                   : StepRole::kKernel;
        break;
      case Category::kMemcpy:
        role = StepRole::kMemcpy;
        break;
      case Category::kMemset:
        role = StepRole::kMemset;
        break;
      case Category::kRuntime:
        role = StepRole::kRuntime;
        break;
      case Category::kData:
        if (waits[trace.lane[i]]) role = StepRole::kDataLoader;
        break;
      case Category::kComm:
        role = StepRole::kCommunication;
        break;
      case Category::kOp:
      case Category::kAnnotation:
        role = loader[trace.name[i]]          ? StepRole::kDataLoader
               : collective_op[trace.name[i]] ? StepRole::kCommunication
                                              : StepRole::kCpuExec;
        break;
      default:
        break;
    }
    if (role == StepRole::kOther) continue;
    out[static_cast<std::size_t>(role)].push_back({trace.begin_ns[i], trace.end_ns(i)});
  }
  for (Spans& spans : out) spans = Merged(std::move(spans));
  return out;
}

/// The steps as the host has them.
std::vector<StepCost> HostSteps(const Trace& trace) {
  std::vector<StepCost> out;
  for (const StepMark& mark : StepMarks(trace)) {
    out.push_back({.step = mark.step, .span = {mark.begin_ns, mark.end_ns}});
  }
  if (!out.empty()) return out;
  Spans whole(trace.recording_count(), Span{kNever, std::numeric_limits<std::int64_t>::min()});
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const Category c = trace.category[i];
    const bool counts = c == Category::kOp || c == Category::kData || c == Category::kComm;
    if (!counts || trace.KindOf(i) == "user_annotation") continue;
    Span& all = whole[trace.RecordingAt(trace.begin_ns[i])];
    all.begin = std::min(all.begin, trace.begin_ns[i]);
    all.end = std::max(all.end, trace.end_ns(i));
  }
  for (const Span& all : whole) {
    if (all.begin >= all.end) continue;
    out.push_back({.step = static_cast<std::int64_t>(out.size()), .span = all});
  }
  return out;
}

/// Steps of one recording.
struct Group {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// REQUIRES: steps by begin, at least one.
std::vector<Group> GroupsOf(const Trace& trace, const std::vector<StepCost>& steps) {
  std::vector<Group> out;
  std::size_t recording = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::size_t of = trace.RecordingAt(steps[s].span.begin);
    if (out.empty() || of != recording) out.push_back({s, 0});
    recording = of;
    ++out.back().count;
  }
  return out;
}

/// Moves the ends of steps to those of the work that they launched; returns how many are left out.
std::size_t FitToDevice(const Trace& trace, std::vector<StepCost>* steps) {
  if (steps->empty()) return 0;
  std::vector<Launched> of_call(trace.size());
  std::vector<bool> matched(trace.size(), false);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || trace.launch[i] == kNoRow) continue;
    Launched& of = of_call[trace.launch[i]];
    of.first_begin = std::min(of.first_begin, trace.begin_ns[i]);
    of.last_end = std::max(of.last_end, trace.end_ns(i));
    ++of.count;
  }
  std::vector<Launched> of_step(steps->size());
  std::vector<std::uint32_t> step_of_call(trace.size(), kNoRow);
  std::size_t at = 0;
  for (std::size_t i = 0; i < trace.size() && at < steps->size(); ++i) {
    if (trace.category[i] != Category::kRuntime) continue;
    while (at < steps->size() && trace.begin_ns[i] >= (*steps)[at].span.end) ++at;
    if (at == steps->size()) break;
    // A call that only meets the step belongs to none.
    const Span& span = (*steps)[at].span;
    if (trace.begin_ns[i] < span.begin || trace.end_ns(i) > span.end) continue;
    Launched& step = of_step[at];
    step.first_begin = std::min(step.first_begin, of_call[i].first_begin);
    step.last_end = std::max(step.last_end, of_call[i].last_end);
    step.count += of_call[i].count;
    step_of_call[i] = static_cast<std::uint32_t>(at);
  }
  std::uint64_t all = 0;
  for (const Launched& step : of_step) all += step.count;
  if (all == 0) return 0;
  const std::vector<Group> groups = GroupsOf(trace, *steps);
  // What was launched before the first step of a recording and was still at work in it.
  std::vector<std::size_t> group_of(trace.recording_count(), groups.size());
  std::vector<std::int64_t> work_before(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Span& first = (*steps)[groups[g].first].span;
    group_of[trace.RecordingAt(first.begin)] = g;
    work_before[g] = first.begin;
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i)) continue;
    if (trace.launch[i] != kNoRow && step_of_call[trace.launch[i]] != kNoRow) continue;
    const std::size_t g = group_of[trace.RecordingAt(trace.begin_ns[i])];
    if (g == groups.size() || of_step[groups[g].first].count == 0) continue;
    if (trace.end_ns(i) < of_step[groups[g].first].first_begin) {
      work_before[g] = std::max(work_before[g], trace.end_ns(i));
    }
  }
  std::int64_t before = work_before.front();
  for (std::size_t s = 0, g = 0; s < steps->size(); ++s) {
    if (s == groups[g].first + groups[g].count) before = std::max(before, work_before[++g]);
    Span& span = (*steps)[s].span;
    span.begin = std::max(before, span.begin);
    span.end = std::max(span.end, of_step[s].count > 0 ? of_step[s].last_end : span.begin);
    span.end = std::max(span.end, span.begin);
    before = span.end;
  }
  std::vector<StepCost> kept;
  for (const Group& group : groups) {
    const auto first = steps->begin() + static_cast<std::ptrdiff_t>(group.first);
    const Launched* const of = of_step.data() + group.first;
    std::size_t keep = group.count;
    while (keep > 0 && of[keep - 1].count == 0) --keep;
    // A single step, and a recording without work of a device, are all that there is of it.
    if (group.count < 2 || (keep == 0 && groups.size() > 1)) {
      keep = group.count;
    } else if (keep > 1 && of[keep - 2].count * kCompleteShare > of[keep - 1].count) {
      --keep;
    }
    kept.insert(kept.end(), first, first + static_cast<std::ptrdiff_t>(keep));
  }
  const std::size_t left_out = steps->size() - kept.size();
  *steps = std::move(kept);
  return left_out;
}

}  // namespace

bool IsDataLoaderWait(std::string_view name) {
  return (name.starts_with("enumerate(DataLoader)#") && name.ends_with(".__next__")) ||
         name.starts_with("enumerate(DataPipe)#");
}

Spans StepWindows(const Trace& trace, const StepBreakdown& breakdown) {
  Spans out;
  std::size_t recording = 0;
  for (const StepCost& step : breakdown.steps) {
    const std::size_t of = trace.RecordingAt(step.span.begin);
    if (out.empty() || of != recording) out.push_back(step.span);
    out.back().end = std::max(out.back().end, step.span.end);
    recording = of;
  }
  return Merged(std::move(out));
}

StepBreakdown StepBreakdownOf(const Trace& trace) {
  StepBreakdown out;
  out.steps = HostSteps(trace);
  out.left_out = FitToDevice(trace, &out.steps);
  const std::array<Spans, kRoles> roles = RoleTimes(trace);
  const Spans& kernels = roles[static_cast<std::size_t>(StepRole::kKernel)];
  const Spans& computation =
      kernels.empty() ? roles[static_cast<std::size_t>(StepRole::kCpuExec)] : kernels;
  const Spans& communication = roles[static_cast<std::size_t>(StepRole::kCommunication)];
  const Spans both = Intersection(computation, communication);

  Spans left;
  for (const StepCost& step : out.steps) left.push_back(step.span);
  left = Merged(std::move(left));
  for (std::size_t r = 0; r < kRoles; ++r) {
    const Spans taken = Intersection(left, roles[r]);
    left = Difference(left, taken);
    for (StepCost& step : out.steps) step.role_ns[r] = LengthWithin(taken, step.span);
  }
  for (StepCost& step : out.steps) {
    step.role_ns[kRoles] = LengthWithin(left, step.span);
    step.computation_ns = LengthWithin(computation, step.span);
    step.communication_ns = LengthWithin(communication, step.span);
    step.overlap_ns = LengthWithin(both, step.span);
    // In pairs that are not below zero and not above it: the sum of all four has no overflow.
    step.rest_ns =
        (step.span.length() - step.computation_ns) + (step.overlap_ns - step.communication_ns);
  }
  return out;
}

Result<Tables> RunStepBreakdown(TraceSource& source, const Options& options) {
  Tables out;
  Table& mean = out.Add("mean", "A step, on average", {"rank", "role", "mean_ns", "share"});
  std::vector<std::string> columns = {"rank", "step", "wall_ns"};
  for (const std::string_view role : kStepRoleNames) columns.push_back(fmt::format("{}_ns", role));
  Table& each = out.Add("steps", "Each step", std::move(columns));
  each.shown = options.top;
  Table& overlap = out.Add("overlap", "Computation and communication in a step, on average",
                           {"rank", "computation_ns", "overlap_ns", "communication_ns", "rest_ns"});
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const StepBreakdown b = StepBreakdownOf(trace);
    if (b.left_out > 0) {
      out.notes.push_back(
          fmt::format("rank {}: the last {} step(s) {}are left out: the profiler has "
                      "not recorded all that they launched",
                      rank, b.left_out, trace.recordings.empty() ? "" : "of its recordings "));
    }
    if (b.steps.empty()) {
      out.notes.push_back(fmt::format(
          "rank {}: neither step marks nor operators: record with profiler.step() once a step",
          rank));
      continue;
    }
    std::array<Sum, kStepRoleNames.size()> sums{};
    std::array<Sum, 4> overlaps{};
    Sum wall = 0;
    for (const StepCost& step : b.steps) {
      std::vector<Cell> row = {Int(rank), step.step, step.span.length()};
      for (std::size_t r = 0; r < sums.size(); ++r) {
        sums[r] += step.role_ns[r];
        row.emplace_back(step.role_ns[r]);
      }
      wall += step.span.length();
      overlaps[0] += step.computation_ns - step.overlap_ns;
      overlaps[1] += step.overlap_ns;
      overlaps[2] += step.communication_ns - step.overlap_ns;
      overlaps[3] += step.rest_ns;
      each.Add(std::move(row));
    }
    const auto n = static_cast<double>(b.steps.size());
    for (std::size_t r = 0; r < sums.size(); ++r) {
      mean.Add({Int(rank), Text(kStepRoleNames[r]), Real(static_cast<double>(sums[r]) / n),
                Share(sums[r], wall)});
    }
    mean.Add({Int(rank), Text("wall"), Real(static_cast<double>(wall) / n), Share(wall, wall)});
    std::vector<Cell> row = {Int(rank)};
    for (const Sum sum : overlaps) row.push_back(Real(static_cast<double>(sum) / n));
    overlap.Add(std::move(row));
  }
  return out;
}

}  // namespace telltale::analysis::trace
