// SPDX-License-Identifier: Apache-2.0
#include "interchange/windows/window_clock.h"

#include <algorithm>

#include "base/saturate.h"
#include "base/units.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kMostMarks = 1 << 20;
/// A profiler has a clock of its own and turns its times into those of the wall clock.
constexpr std::int64_t kProfilerClockNs = kMs;
/// The agent writes a new anchor where the wall clock has jumped by more (docs/formats/events.md).
constexpr std::int64_t kAnchorNs = 50 * kMs;

}  // namespace

void MarkSink::Step(const format::StepRow& row) {
  if (row.mode != mode_ || marks_.size() >= kMostMarks) return;
  marks_.push_back({row.step, row.time_ns, SaturatingAdd(row.time_ns, row.duration_ns)});
}

WindowClock FitWindowClock(const WindowRecording& recording, const std::vector<MarkedStep>& marks) {
  std::vector<std::int64_t> apart;
  for (const MarkedStep& mark : marks) {
    const auto step = recording.steps.find(mark.step);
    // The profiler starts between the begin of the first step and its mark.
    if (step == recording.steps.end() || mark.step == recording.first) continue;
    apart.push_back(SaturatingSub(step->second.begin_ns, mark.begin_ns));
  }
  if (apart.empty() && marks.size() == 1 && !recording.early) {
    const auto step = recording.steps.find(marks.front().step);
    if (step != recording.steps.end()) {
      apart.push_back(SaturatingSub(step->second.end_ns, marks.front().end_ns));
    }
  }
  WindowClock clock;
  const bool clocks = recording.anchored && recording.monotonic_ns > 0 && recording.realtime_ns > 0;
  const std::int64_t by_clocks = SaturatingSub(
      SaturatingAdd(recording.monotonic_ns, recording.monotonic_to_run_ns), recording.realtime_ns);
  if (!apart.empty()) {
    const auto middle = apart.begin() + static_cast<std::ptrdiff_t>(apart.size() / 2);
    std::nth_element(apart.begin(), middle, apart.end());
    clock.by = "steps";
    clock.shift_ns = *middle;
    clock.matched = apart.size();
    clock.uncertainty_ns = 0;
    for (const std::int64_t one : apart) {
      clock.uncertainty_ns = std::max(clock.uncertainty_ns, Apart(one, clock.shift_ns));
    }
    // One border alone has nothing of its own kind to be held against.
    if (apart.size() == 1) {
      clock.uncertainty_ns = clocks ? Apart(clock.shift_ns, by_clocks) : -1;
    }
  } else if (clocks) {
    clock = {"clock", by_clocks, kProfilerClockNs, 0};
  } else if (recording.anchored) {
    clock = {"anchor", recording.realtime_to_run_ns, kAnchorNs, 0};
  }
  return clock;
}

}  // namespace telltale::interchange
