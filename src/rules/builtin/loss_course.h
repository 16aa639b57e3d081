// SPDX-License-Identifier: Apache-2.0
// How the losses of a process go on, on the data that it is trained on and on data that it is not:
// which scalars are which, and one point for each evaluation, block of steps or boosting round.
//
// Thread safety: none. Memory: a few numbers a process.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/builtin/loss_fits.h"
#include "rules/series.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules {

/// NaN: the point says nothing of this loss.
struct CoursePoint {
  std::int64_t step = -1;  ///< The newest TRAIN step by then.
  std::int64_t ns = 0;
  double train = std::numeric_limits<double>::quiet_NaN();
  double validation = std::numeric_limits<double>::quiet_NaN();
};

/// Of one process.
struct LossCourse {
  double train_sum = 0;  ///< Since the last point, or the last block.
  std::int64_t train_count = 0;
  std::int64_t train_step = -1;  ///< Newest.
  double validation_sum = 0;     ///< Of the evaluation that goes on: mode EVAL,
  std::int64_t validation_count = 0;
  double named_sum = 0;  ///< and what is called a validation loss, which counts more.
  std::int64_t named_count = 0;
  bool named = false;
  std::int64_t ns = 0;  ///< Of the newest loss.

  bool boosting = false;
  std::int64_t round = -1;  ///< The boosting round whose metrics come in.
  std::vector<std::pair<std::uint32_t, double>> metrics;  ///< Of the round: place and value.
  std::string train_set;  ///< What the evaluation set is called that is the training data.

  FitEvents fits;
  FitBorder border;  ///< Of the training loss.

  /// Another fit of the same process begins.
  void Restart() {
    LossCourse next;
    next.fits = fits;
    next.border = border;
    next.boosting = boosting;
    *this = std::move(next);
  }
};

class LossCourses {
 public:
  /// `tensor_regex`: only losses with this in their names; empty: those that are known as such.
  /// `block`: training losses of a point of their own; 0: they come with those of validation, as
  /// the mean since the one before.
  LossCourses(std::string_view tensor_regex, std::int64_t block);

  /// Of scalars: whether it is a loss.
  bool Wants(const Series& series);
  /// REQUIRES: a scalar that is wanted. Whether it is the first training loss of another fit, whose
  /// model, and perhaps data, are others. Called before Take.
  bool BeginsFit(LossCourse* course, std::uint32_t series, const format::ScalarRow& scalar) const;
  /// REQUIRES: a scalar that is wanted. The point that it completes, if it does.
  std::optional<CoursePoint> Take(LossCourse* course, std::uint32_t series,
                                  const format::ScalarRow& scalar);
  /// Nothing follows: what has come since the last point.
  std::optional<CoursePoint> Finish(LossCourse* course) const;

 private:
  enum class Role : std::uint8_t { kNone, kTrain, kEvaluation, kNamed, kBoosting };
  struct Place {
    Role role = Role::kNone;
    std::string set, metric;  ///< Of boosting: "validation_0" and "logloss".
    bool known_set = false;   ///< Its name says that it is for training or validation.
    bool train_set = false;   ///< Its name says that it is the training data.
  };
  Place PlaceOf(const Series& series) const;
  std::optional<CoursePoint> EndRound(LossCourse* course) const;
  std::optional<CoursePoint> EndEvaluation(LossCourse* course) const;
  static bool EvaluationGoesOn(const LossCourse& course) {
    return course.named_count > 0 || (!course.named && course.validation_count > 0);
  }

  const bool selected_;
  const TensorPattern pattern_;
  const std::int64_t block_;
  std::vector<Place> places_;  ///< By series.
};

/// "val_loss", "validation/loss", "Loss/eval": a loss of data that the model is not trained on.
bool IsValidationLoss(std::string_view name);

}  // namespace telltale::rules
