// SPDX-License-Identifier: Apache-2.0
#include "telemetry/step_totals.h"

#include <algorithm>

namespace telltale::telemetry {
namespace {

constexpr double kNsPerSecond = 1e9;
/// A training whose newest step is this many times older than it was long, hangs.
constexpr std::int64_t kPatience = 3;

}  // namespace

void StepTotals::Add(const format::StepRow& row, Sums* sums) {
  ++sums->steps;
  sums->duration_ns += row.duration_ns;
  const analysis::PhaseTimes times = analysis::PhasesOf(row);
  for (std::size_t i = 0; i < times.size(); ++i) sums->phase_ns[i] += times[i];
  sums->samples += std::max<std::int64_t>(0, row.batch_size);
}

void StepTotals::Add(const format::StepRow& row) {
  Add(row, &all_);
  skipped_ += row.skipped ? 1 : 0;
  probe_ns_ += row.probe_ns;
  const std::int64_t end = row.time_ns + row.duration_ns;
  if (first_begin_ns_ == 0 || row.time_ns < first_begin_ns_) first_begin_ns_ = row.time_ns;
  if (end >= last_end_ns_) {
    last_end_ns_ = end;
    newest_step_ = row.step;
    last_ = {};
    Add(row, &last_);
  }
  const std::int64_t number = end / kSlotNs;
  Slot& slot = slots_[static_cast<std::size_t>(number) % kSlots];
  if (slot.number > number) return;
  if (slot.number < number) slot = {number, {}};
  Add(row, &slot.sums);
}

StepTotals::Recent StepTotals::At(std::int64_t now_ns) const {
  const std::int64_t now = std::max(now_ns, last_end_ns_);
  const std::int64_t first = now / kSlotNs - static_cast<std::int64_t>(kSlots) + 1;
  Recent out;
  for (const Slot& slot : slots_) {
    if (slot.number < first) continue;
    out.mean_of.steps += slot.sums.steps;
    out.mean_of.duration_ns += slot.sums.duration_ns;
    out.mean_of.samples += slot.sums.samples;
    for (std::size_t i = 0; i < slot.sums.phase_ns.size(); ++i) {
      out.mean_of.phase_ns[i] += slot.sums.phase_ns[i];
    }
  }
  const std::int64_t age = now - last_end_ns_;
  out.age_s = static_cast<double>(age) / kNsPerSecond;
  if (out.mean_of.steps > 0) {
    const std::int64_t from = std::max(first * kSlotNs, first_begin_ns_);
    const double seconds =
        static_cast<double>(std::max<std::int64_t>(1, now - from)) / kNsPerSecond;
    out.steps_per_s = static_cast<double>(out.mean_of.steps) / seconds;
    out.samples_per_s = static_cast<double>(out.mean_of.samples) / seconds;
    return out;
  }
  // Steps longer than a minute are no hang.
  out.mean_of = last_;
  if (last_.duration_ns > 0 && age <= kPatience * last_.duration_ns) {
    const double seconds = static_cast<double>(last_.duration_ns) / kNsPerSecond;
    out.steps_per_s = 1 / seconds;
    out.samples_per_s = static_cast<double>(last_.samples) / seconds;
  }
  return out;
}

}  // namespace telltale::telemetry
