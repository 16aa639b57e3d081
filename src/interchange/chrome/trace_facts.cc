// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/trace_facts.h"

#include <algorithm>
#include <cstdlib>

#include "interchange/chrome/intervals.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kMaxCollectives = 200'000;
constexpr std::size_t kMaxNamings = 100'000;
/// Fewer say nothing.
constexpr std::size_t kMinMatched = 3;
/// Times, their base and a shift together stay within 64 bits.
constexpr std::int64_t kMostShiftNs = INT64_MAX / 4;

std::size_t IndexOf(ChromePhase phase) { return static_cast<std::size_t>(phase); }

}  // namespace

void TraceFacts::Take(ChromeBlock* block) {
  events_ += block->events;
  first_ns_ = std::min(first_ns_, block->first_ns);
  last_ns_ = std::max(last_ns_, block->last_ns);
  const auto key = [&](std::uint32_t track) {
    return Key(block->tracks[track].pid, block->tracks[track].tid);
  };
  const auto of = [&](std::uint32_t track) -> Of& {
    Of& found = tracks_[key(track)];
    found.pid = block->tracks[track].pid;
    found.pid_number = block->tracks[track].pid_number;
    return found;
  };
  if (block->own_loader_track >= 0) {
    own_loader_pid_ = block->tracks[static_cast<std::size_t>(block->own_loader_track)].pid_number;
  }
  for (ChromeNaming& naming : block->namings) {
    if (thread_names_.size() + process_names_.size() > kMaxNamings) break;
    if (naming.process) {
      process_names_[block->tracks[naming.track].pid] = std::move(naming.name);
    } else {
      thread_names_[key(naming.track)] = std::move(naming.name);
    }
  }
  for (const ChromeStepMark& mark : block->marks) {
    of(mark.track).marks.push_back({mark, mark.begin_ns + mark.duration_ns});
  }
  for (std::size_t phase = 0; phase < kChromePhases; ++phase) {
    Of* last = nullptr;
    std::uint32_t last_track = 0;
    for (const auto& [track, interval] : block->intervals[phase]) {
      if (last == nullptr || track != last_track) last = &of(track);
      last_track = track;
      last->intervals[phase].push_back(interval);
    }
    block->intervals[phase] = {};
  }
  for (const auto& [interval, name] : block->collectives) {
    if (collectives_.size() >= kMaxCollectives) break;
    collectives_.push_back({-1, interval.end_ns, std::string(block->slices.names[name])});
  }
}

std::string_view TraceFacts::ThreadName(const ChromeTrack& track) const {
  const auto found = thread_names_.find(Key(track.pid, track.tid));
  return found == thread_names_.end() ? std::string_view() : found->second;
}
std::string_view TraceFacts::ProcessName(const ChromeTrack& track) const {
  const auto found = process_names_.find(track.pid);
  return found == process_names_.end() ? std::string_view() : found->second;
}

void TraceFacts::Settle() {
  const std::vector<Mark>* most = nullptr;
  for (auto& [key, track] : tracks_) {
    std::vector<Mark>& marks = track.marks;
    std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
      return std::pair(a.mark.begin_ns, a.mark.number) < std::pair(b.mark.begin_ns, b.mark.number);
    });
    for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
      const ChromeStepMark& next = marks[i + 1].mark;
      Mark& mark = marks[i];
      // A step ends where the next begins, where they follow each other.
      const bool follows = next.number == mark.mark.number + 1;
      if (next.begin_ns < mark.end_ns ||
          (follows && next.begin_ns - mark.end_ns <= mark.mark.duration_ns / 10)) {
        mark.end_ns = next.begin_ns;
      }
    }
    if (most == nullptr || marks.size() > most->size()) most = &marks;
  }
  if (most != nullptr) steps_ = *most;
}

void TraceFacts::SettleCollectives() {
  std::sort(collectives_.begin(), collectives_.end(), [](const Collective& a, const Collective& b) {
    return std::pair(a.end_ns, std::string_view(a.name)) <
           std::pair(b.end_ns, std::string_view(b.name));
  });
  for (Collective& one : collectives_) one.step = StepAt(one.end_ns);
}

std::int64_t TraceFacts::StepAt(std::int64_t time_ns) const {
  std::size_t near = steps_.size();
  return StepAt(time_ns, &near);
}

std::int64_t TraceFacts::StepAt(std::int64_t time_ns, std::size_t* near) const {
  const auto begins_before = [&](std::size_t at) {
    return at < steps_.size() && steps_[at].mark.begin_ns <= time_ns;
  };
  if (!begins_before(*near) || begins_before(*near + 1)) {
    const auto behind = std::upper_bound(
        steps_.begin(), steps_.end(), time_ns,
        [](std::int64_t time, const Mark& mark) { return time < mark.mark.begin_ns; });
    if (behind == steps_.begin()) return -1;
    *near = static_cast<std::size_t>(behind - steps_.begin()) - 1;
  }
  const Mark& mark = steps_[*near];
  return time_ns < mark.end_ns ? mark.mark.number : -1;
}

format::StepRow TraceFacts::StepOf(const Of& track, const Mark& mark,
                                   const std::vector<ChromeInterval>& backward_of_process) const {
  const std::int64_t begin = mark.mark.begin_ns;
  const std::int64_t end = mark.end_ns;
  const auto phase = [&](ChromePhase which) {
    return Within(track.intervals[IndexOf(which)], begin, end);
  };
  const IntervalSet whole = {{begin, end}};
  const IntervalSet data = phase(ChromePhase::kData);
  IntervalSet left = Without(whole, data);
  const auto take = [&left](const IntervalSet& wanted) {
    const IntervalSet rest = Without(left, wanted);
    IntervalSet taken = Without(left, rest);
    left = rest;
    return taken;
  };
  const IntervalSet optimizer = take(phase(ChromePhase::kOptimizer));
  take(phase(ChromePhase::kAside));
  const IntervalSet comm = take(phase(ChromePhase::kComm));
  // Between two nodes of the graph the pass goes on, unless the step's own thread runs something.
  const IntervalSet nodes = Within(backward_of_process, begin, end);
  const IntervalSet operators = Without(phase(ChromePhase::kOperator), nodes);
  IntervalSet passes;
  auto next = operators.begin();
  for (const ChromeInterval& node : nodes) {
    while (next != operators.end() && !passes.empty() && next->begin_ns < passes.back().end_ns) {
      ++next;
    }
    const bool joins =
        !passes.empty() && (next == operators.end() || next->begin_ns >= node.begin_ns);
    if (joins) {
      passes.back().end_ns = node.end_ns;
    } else {
      passes.push_back(node);
    }
  }
  // Before a pass and behind what is not the model's: the forward pass, from its first operator.
  const IntervalSet stretches =
      Without(Without(Without(whole, data), optimizer), phase(ChromePhase::kAside));
  IntervalSet forward;
  for (const ChromeInterval& stretch : stretches) {
    const IntervalSet inside = Within(operators, stretch.begin_ns, stretch.end_ns);
    if (inside.empty()) continue;
    const IntervalSet of_stretch = Within(passes, stretch.begin_ns, stretch.end_ns);
    const std::int64_t until = !of_stretch.empty() ? of_stretch.back().begin_ns
                               : passes.empty()    ? inside.back().end_ns
                                                   : stretch.begin_ns;
    if (until > inside.front().begin_ns) forward.push_back({inside.front().begin_ns, until});
  }
  const IntervalSet backward = take(passes);
  forward = take(forward);

  format::StepRow row;
  row.time_ns = begin;
  row.duration_ns = end - begin;
  row.step = mark.mark.number;
  row.mode = "TRAIN";
  row.pid = static_cast<std::int32_t>(std::clamp<std::int64_t>(track.pid_number, 0, INT32_MAX));
  row.attempt = 1;
  row.data_wait_ns = LengthOf(data);
  row.optimizer_ns = LengthOf(optimizer);
  row.comm_wait_ns = LengthOf(comm);
  row.backward_ns = LengthOf(backward);
  row.forward_ns = LengthOf(forward);
  row.other_ns = row.duration_ns - row.data_wait_ns - row.optimizer_ns - row.comm_wait_ns -
                 row.backward_ns - row.forward_ns;
  row.micro_steps = static_cast<std::uint32_t>(passes.size());
  row.optimizer_calls = static_cast<std::uint32_t>(phase(ChromePhase::kOptimizer).size());
  return row;
}

std::vector<format::StepRow> TraceFacts::Steps() {
  std::vector<format::StepRow> rows;
  std::map<std::string, std::vector<ChromeInterval>> backward;  // By process.
  for (auto& [key, track] : tracks_) {
    for (auto& intervals : track.intervals) intervals = ToSet(std::move(intervals));
    auto& of_process = backward[track.pid];
    const auto& more = track.intervals[IndexOf(ChromePhase::kBackward)];
    of_process.insert(of_process.end(), more.begin(), more.end());
  }
  for (auto& [pid, intervals] : backward) intervals = ToSet(std::move(intervals));
  for (const auto& [key, track] : tracks_) {
    for (const Mark& mark : track.marks) {
      if (mark.end_ns <= mark.mark.begin_ns) continue;
      rows.push_back(StepOf(track, mark, backward[track.pid]));
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.time_ns + a.duration_ns < b.time_ns + b.duration_ns;
  });
  return rows;
}

ClockFit FitClock(const TraceFacts& a, std::int64_t a_base_ns, const TraceFacts& b,
                  std::int64_t b_base_ns) {
  const auto by_step = [](const TraceFacts& facts) {
    std::map<std::int64_t, std::vector<const TraceFacts::Collective*>> out;
    for (const auto& one : facts.collectives()) out[one.step].push_back(&one);
    return out;
  };
  const auto of_a = by_step(a);
  const auto of_b = by_step(b);
  std::vector<std::int64_t> differences;
  for (const auto& [step, mine] : of_a) {
    const auto other = of_b.find(step);
    // Of another number some are missing, and nobody knows which.
    if (other == of_b.end() || other->second.size() != mine.size()) continue;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (mine[i]->name != other->second[i]->name) continue;
      std::int64_t difference = 0;
      const bool beyond =
          __builtin_sub_overflow(mine[i]->end_ns + a_base_ns, other->second[i]->end_ns + b_base_ns,
                                 &difference) ||
          difference > kMostShiftNs || difference < -kMostShiftNs;
      if (!beyond) differences.push_back(difference);
    }
  }
  ClockFit fit;
  fit.matched = differences.size();
  if (differences.size() < kMinMatched) return fit;
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  const std::int64_t median = *middle;
  for (std::int64_t& one : differences) one = std::abs(one - median);
  const auto high =
      differences.begin() + static_cast<std::ptrdiff_t>(differences.size() * 95 / 100);
  std::nth_element(differences.begin(), high, differences.end());
  // Clocks of one machine are one clock: a difference within the spread is none.
  if (std::abs(median) > *high) {
    fit.shift_ns = median;
    fit.uncertainty_ns = *high;
  } else {
    fit.uncertainty_ns = *high + std::abs(median);
  }
  return fit;
}

}  // namespace telltale::interchange
