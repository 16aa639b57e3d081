// SPDX-License-Identifier: Apache-2.0
// Where a process begins another fit: a second XGBoost training, the next fold, a model that is
// made anew, another task. Its loss begins again at the top, which is no divergence.
//
// Thread safety: none. Memory: a few numbers a process or loss.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "format/records.gen.h"

namespace telltale::rules {

/// What events of a process say of new fits.
class FitEvents {
 public:
  /// A new optimizer is one of a new fit only where the one before had stepped so often.
  static constexpr std::int64_t kLeastSteps = 20;

  static bool Wants(std::string_view kind) {
    return kind == "boosting.start" || kind == "optimizer";
  }

  /// REQUIRES: it is wanted. True where a fit may begin.
  bool See(const format::EventRow& event) {
    if (event.kind == "boosting.start") {
      ++certain_;
      return true;
    }
    // What an event says of the step may be a step of an evaluation.
    const std::int64_t step = steps_ > 0 ? steps_ : std::max<std::int64_t>(0, event.step);
    const bool another = optimizer_step_ >= 0 && step - optimizer_step_ >= kLeastSteps;
    if (another) ++possible_;
    optimizer_step_ = step;
    return another;
  }

  /// A TRAIN step has ended.
  void SeeStep(std::int64_t step) { steps_ = std::max(steps_, step + 1); }

  /// The optimizer did not take this step. Where it took none of many, the program did something
  /// else with its gradients, and what follows may be another task.
  void SeeSkipped(std::int64_t step) {
    skipped_ = step == skipped_step_ + 1 ? skipped_ + 1 : 1;
    skipped_step_ = step;
    if (skipped_ == kLeastSteps) ++possible_;
  }

  /// The steps of a loss began again where they had begun: another fit, or only another count.
  void SeeRestart() { ++possible_; }

  std::int64_t certain() const { return certain_; }
  std::int64_t possible() const { return possible_; }

 private:
  std::int64_t certain_ = 0;   ///< Fits that an event has announced.
  std::int64_t possible_ = 0;  ///< Optimizers made anew, rows of skipped steps, restarts.
  std::int64_t steps_ = 0;     ///< TRAIN steps so far, by their number.
  std::int64_t optimizer_step_ = -1;
  std::int64_t skipped_ = 0;  ///< In a row.
  std::int64_t skipped_step_ = -2;
};

/// The steps of one loss, in the order in which they come.
class StepCount {
 public:
  /// Whether they go back to where they began, after many of them. A loss that came late does not.
  bool Restarts(std::int64_t step, std::int64_t time_ns) {
    const bool back = count_ >= FitEvents::kLeastSteps && step >= 0 && step <= begin_ &&
                      step < newest_ && time_ns > time_ns_;
    if (back) *this = StepCount();
    if (count_ == 0) begin_ = step;
    if (count_ == 0 || step > newest_) {
      ++count_;
      newest_ = step;
      time_ns_ = time_ns;
    }
    return back;
  }
  /// Another attempt may go on anywhere.
  void Forget() { *this = StepCount(); }

 private:
  std::int64_t begin_ = -1, newest_ = -1, time_ns_ = 0;
  std::int64_t count_ = 0;
};

/// Of one loss: whether the one that comes now is the first of another fit.
class FitBorder {
 public:
  /// With each loss, in order. A new optimizer alone may be the next stage of the same training,
  /// and steps may be skipped for other reasons: it begins a fit where the loss is back above the
  /// middle between its start and its best.
  bool Begins(const FitEvents& events, double loss) {
    bool begins = events.certain() > certain_ && losses_ > 0;
    if (events.possible() > possible_ && losses_ > 0) {
      begins = begins || (std::isfinite(loss) && loss > best_ + (start_ - best_) / 2 &&
                          start_ - best_ > 0.05 * std::abs(start_));
      // What begins is seen within its first losses.
      if (begins || ++looked_ >= kFirstLosses) {
        possible_ = events.possible();
        looked_ = 0;
      }
    }
    certain_ = events.certain();
    if (begins) {
      losses_ = 0;
      best_ = std::numeric_limits<double>::infinity();
    }
    if (std::isfinite(loss)) {
      if (losses_++ == 0) start_ = loss;
      best_ = std::min(best_, loss);
    }
    return begins;
  }

 private:
  static constexpr int kFirstLosses = 3;

  std::int64_t certain_ = 0;
  std::int64_t possible_ = 0;
  int looked_ = 0;
  std::int64_t losses_ = 0;
  double start_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace telltale::rules
