// SPDX-License-Identifier: Apache-2.0
// What the rules that read statistics of tensors share: the capture of one step as it comes in, and
// which tensors still come.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/builtin/processes.h"
#include "rules/series.h"

namespace telltale::rules {

/// How often one tensor is captured. Not all need come in the same steps: two models are trained in
/// turn, layers are frozen, the plan changes.
class Presence {
 public:
  void See(std::int64_t step) {
    if (last_ >= 0) widest_ = std::max(widest_, step - last_);
    last_ = step;
  }
  /// It came no more for so long that it will not: several times its widest distance so far, or
  /// that of all captures where it came once. The governor doubles distances, so twice is too soon.
  bool GoneAt(std::int64_t step, std::int64_t widest_of_all) const {
    const std::int64_t usual = widest_ > 0 ? widest_ : widest_of_all;
    return last_ >= 0 && usual > 0 && step - last_ > kGoneAfter * usual;
  }

 private:
  static constexpr std::int64_t kGoneAfter = 4;

  std::int64_t last_ = -1;
  std::int64_t widest_ = 0;
};

/// A process whose tensors are captured each few steps. A capture is complete when its step has
/// ended.
struct TensorProcess : TrainingProcess {
  std::int64_t capture_step = -1;  ///< The capture that comes in now; -1: none.
  std::int64_t capture_ns = 0;
  std::int64_t judged_step = -1;
  std::int64_t widest = 0;  ///< Most steps between two captures.

  double worked_s = 0;     ///< TRAIN steps less their waits for data, which are InputBound's.
  double cost_from_s = 0;  ///< What worked_s was where the open incident began.
  std::int64_t last_ns = 0;
  std::uint64_t serial = 0;  ///< Of TensorPlaces; 0: it has none yet.

  bool Late(std::int64_t step) const { return step < capture_step || step <= judged_step; }
  void BeginCapture(const format::StatisticRow& row) {
    capture_step = row.step;
    capture_ns = row.time_ns;
  }
  /// REQUIRES: a capture comes in.
  std::int64_t EndCapture() {
    const std::int64_t step = std::exchange(capture_step, -1);
    if (judged_step >= 0) widest = std::max(widest, step - judged_step);
    judged_step = step;
    return step;
  }
  bool CompleteAt(std::int64_t step) const { return capture_step >= 0 && step >= capture_step; }

  /// False where the step was seen already, or is none.
  bool BeginStep(const format::StepRow& step) {
    if (step.duration_ns <= 0 || !TrainingProcess::BeginStep(step.step)) return false;
    last_ns = step.time_ns + step.duration_ns;
    return true;
  }
  void CountWork(const format::StepRow& step) {
    const std::int64_t waited = std::clamp<std::int64_t>(step.data_wait_ns, 0, step.duration_ns);
    worked_s += static_cast<double>(step.duration_ns - waited) / 1e9;
  }
  /// The open incident lasts until now, and lost `share` of the work since it began.
  void Extend(double share) {
    incident.last_step = std::max({incident.first_step, judged_step, last_step});
    incident.end_ns = std::max({incident.start_ns, capture_ns, last_ns});
    incident.cost_seconds = std::max(0.0, worked_s - cost_from_s) * share;
  }
};

/// Which tensor of its process a series is: looked up by name once, for there are millions of rows.
class TensorPlaces {
 public:
  /// `lookup()`: the tensor's index in the process, made where it is new.
  template <class Lookup>
  std::size_t Find(TensorProcess* process, std::uint32_t series, Lookup&& lookup) {
    if (series == kNoSeries) return lookup();
    // Another process may have its rank, pid and attempt after it.
    if (process->serial == 0) process->serial = ++serials_;
    if (places_.size() <= series) places_.resize(series + 1);
    Place& place = places_[series];
    if (place.process != process->serial) place = {process->serial, lookup()};
    return place.tensor;
  }

 private:
  struct Place {
    std::uint64_t process = 0;
    std::size_t tensor = 0;
  };

  std::vector<Place> places_;  ///< By series.
  std::uint64_t serials_ = 0;
};

}  // namespace telltale::rules
