// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/scope.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <string_view>

namespace telltale::analysis::trace {
namespace {

std::int64_t NumberOfStep(std::string_view name, std::int64_t place) {
  const std::size_t digits = name.find_first_of("0123456789");
  if (digits == std::string_view::npos) return place;
  std::int64_t number = 0;
  const auto read = std::from_chars(name.data() + digits, name.data() + name.size(), number);
  return read.ec == std::errc() ? number : place;
}

}  // namespace

bool OnStream(const Trace& trace, std::size_t row) {
  if (trace.OnDevice(row)) return true;
  if (trace.category[row] != Category::kSync || trace.LaneOf(row).stream < 0) return false;
  const std::string& name = trace.NameOf(row);
  return name != "Context Sync" && name != "Event Sync";
}

std::vector<StepMark> StepMarks(const Trace& trace) {
  std::vector<StepMark> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] != Category::kStep) continue;
    out.push_back({NumberOfStep(trace.NameOf(i), static_cast<std::int64_t>(out.size())),
                   static_cast<std::uint32_t>(i), trace.begin_ns[i], trace.end_ns(i)});
  }
  return out;
}

std::int64_t StepAt(const std::vector<StepMark>& marks, std::int64_t time_ns) {
  auto at = std::upper_bound(marks.begin(), marks.end(), time_ns,
                             [](std::int64_t t, const StepMark& m) { return t < m.begin_ns; });
  // Marks of one thread do not overlap; of several they may: a few back are looked at.
  for (int back = 0; back < 8 && at != marks.begin(); ++back) {
    --at;
    if (time_ns < at->end_ns) return at->step;
  }
  return -1;
}

std::vector<std::int64_t> StepsOfRows(const Trace& trace, const std::vector<StepMark>& marks) {
  std::vector<std::int64_t> out(trace.size(), -1);
  if (marks.empty()) return out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!OnStream(trace, i)) out[i] = StepAt(marks, trace.begin_ns[i]);
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (OnStream(trace, i) && trace.launch[i] != kNoRow) out[i] = out[trace.launch[i]];
  }
  return out;
}

Scope::Scope(const Trace& trace, const ScopeOptions& options) {
  if (options.everything) return;
  struct Marked {
    std::set<std::uint32_t> names;
    std::int64_t last_begin = std::numeric_limits<std::int64_t>::min();
    std::int64_t last_end = std::numeric_limits<std::int64_t>::min();
    bool whole() const { return names.size() < 2; }  // Nothing would be left of a single step.
  };
  std::vector<Marked> recordings(trace.recording_count());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] != Category::kStep) continue;
    Marked& marked = recordings[trace.RecordingAt(trace.begin_ns[i])];
    marked.names.insert(trace.name[i]);
    marked.last_begin = std::max(marked.last_begin, trace.begin_ns[i]);
    marked.last_end = std::max(marked.last_end, trace.end_ns(i));
  }
  if (std::all_of(recordings.begin(), recordings.end(),
                  [](const Marked& marked) { return marked.whole(); })) {
    return;
  }
  all_ = false;
  in_.assign(trace.size(), false);
  const auto by_launch = [&](std::size_t row) {
    return trace.OnDevice(row) || trace.category[row] == Category::kSync;
  };
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const Marked& marked = recordings[trace.RecordingAt(trace.begin_ns[i])];
    if (marked.whole()) {
      in_[i] = true;
      continue;
    }
    if (by_launch(i)) continue;
    in_[i] = options.last_step ? trace.begin_ns[i] <= marked.last_end
                               : trace.begin_ns[i] < marked.last_begin;
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!by_launch(i) || in_[i]) continue;
    in_[i] = trace.launch[i] != kNoRow && in_[trace.launch[i]];
    if (!in_[i]) ++left_out_;
  }
}

}  // namespace telltale::analysis::trace
