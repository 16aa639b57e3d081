// SPDX-License-Identifier: Apache-2.0
// What is known of a training loop beside its losses: its optimizer, its learning rates, its
// scheduler, what its loss is made of, whether its gradients are cleared. The causes that rules
// about losses name come from here, and not from what is usual.
//
// Thread safety: none. Memory: a few numbers a process.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/saturate.h"
#include "format/records.gen.h"

namespace telltale::rules {

/// A moment of a training.
struct TrainingMoment {
  std::int64_t step = -1;
  std::int64_t ns = 0;
  double worked_s = 0;  ///< Time of the loop so far, less the waits for data.
};

/// The learning rates of one process: of all its optimizers, and of each the largest of all
/// parameter groups.
class LearningRates {
 public:
  /// A rate that is below this share of the largest one of the run moves no weight any more.
  static constexpr double kSpent = 1e-4;

  /// "lr", "learning_rate", "lr.1" of a further optimizer, "lr.largest" of several groups.
  static bool IsRate(std::string_view name);

  void See(std::string_view name, double value, const TrainingMoment& now);
  /// A new optimizer takes the place of those there were: their rates count no more.
  void Renew();

  /// The largest of them now; NaN: none is known.
  double now() const { return now_; }
  /// The largest of the run, and where it was last.
  double largest() const { return largest_; }
  std::int64_t largest_step() const { return largest_step_; }
  /// Since when the rate is 0, or below kSpent of the largest; nothing where it is not.
  const std::optional<TrainingMoment>& spent() const { return spent_; }
  /// Steps of stretches at 0 that are over, and those in which it moved the weights.
  std::int64_t zero_steps() const { return zero_steps_.value(); }
  std::int64_t moving_steps() const { return moving_steps_.value(); }

  /// The rate was changed in nearly every step from one to another.
  struct EachStep {
    std::int64_t first = -1;
    std::int64_t last = -1;
    double factor = 0;  ///< Of each change, where all were alike; else 0.
  };
  std::optional<EachStep> each_step() const;

 private:
  struct Rate {
    double value = std::numeric_limits<double>::quiet_NaN();
    std::int64_t step = -1;
  };

  void Update(const TrainingMoment& now);

  std::map<std::string, Rate, std::less<>> rates_;
  double now_ = std::numeric_limits<double>::quiet_NaN();
  double largest_ = std::numeric_limits<double>::quiet_NaN();
  std::int64_t largest_step_ = -1;
  std::optional<TrainingMoment> spent_;
  std::int64_t seen_step_ = -1;  ///< Since when it is what it is now, or was told again.
  Sum zero_steps_ = 0;
  Sum moving_steps_ = 0;
  // Of falls of the rate since it was largest.
  std::int64_t falls_ = 0;
  std::int64_t first_fall_ = -1;
  std::int64_t last_fall_ = -1;
  double least_factor_ = 1;
  double most_factor_ = 0;
};

/// What events say of the loop of one process.
struct TrainingFacts {
  struct Scheduler {
    std::string name;
    std::int64_t calls = -1;
    std::int64_t optimizer_steps = -1;
  };
  struct LossFunction {
    std::string name;
    std::int64_t classes = -1;
    bool softmax_twice = false;
    bool plain = true;  ///< The mean of it alone, neither scaled nor weighted: chance level holds.
    std::string input_shape, target_shape;
    bool shapes_differ = false;
  };
  struct Parameters {
    std::int64_t all = -1;
    std::int64_t without_gradient = -1;
    std::int64_t in_called_models = -1;
    std::int64_t of_models = 0;  ///< Trainable ones of the models that were called,
    std::int64_t left_out = 0;   ///< and so many of them never change: no optimizer has them.
  };

  /// Where the first loss that is NaN or Inf comes from.
  struct NotFinite {
    std::int64_t step = -1;
    std::string origin;     ///< weights, batch, targets, operation; empty: not known.
    std::string operation;  ///< That gave it: log, div.
    std::string first;      ///< Name of a weight that is not finite.
    std::int64_t weights = 0, bad_weights = 0;
    std::int64_t rows = -1, of_rows = -1, row = -1;  ///< Of the batch.
    std::int64_t nan = 0, inf = 0;
    std::int64_t undefined = 0;  ///< Values for which the operation has no finite result.
  };

  std::string optimizer;  ///< Class; empty: not known.
  std::int64_t groups = -1;
  std::optional<Scheduler> scheduler;
  std::optional<LossFunction> loss;
  std::optional<Parameters> parameters;
  std::optional<NotFinite> not_finite;
  std::optional<bool> cleared;  ///< Gradients are, between two steps.

  /// True where the event is one of these.
  static bool Wants(std::string_view kind);
  /// REQUIRES: it is wanted.
  void See(const format::EventRow& event);

  /// The scheduler steps as often as the optimizer.
  bool schedules_each_step() const {
    return scheduler && scheduler->optimizer_steps >= 10 &&
           scheduler->calls >= scheduler->optimizer_steps * 9 / 10;
  }
};

}  // namespace telltale::rules
