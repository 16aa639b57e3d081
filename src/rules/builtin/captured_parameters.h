// SPDX-License-Identifier: Apache-2.0
// What captures say of the parameters of one process as a whole: whether its weights move, whether
// its gradients live, where NaN was first. From statistics alone, so only what they prove.
//
// Thread safety: none. Memory: some 150 bytes a parameter.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/series.h"

namespace telltale::rules {

class CapturedParameters {
 public:
  /// Statistics of weights, biases and gradients of TRAIN.
  static bool Wants(const Series& series);

  void See(const format::StatisticRow& row, std::uint32_t series);

  /// Every weight that was captured in both was the same to the last digit.
  struct Still {
    std::int64_t from = -1;
    std::int64_t to = -1;
    std::int64_t weights = 0;  ///< Compared in the newest capture.
  };
  std::optional<Still> still() const;

  /// A weight, and no bias, changed by at least so many times its own size between two captures
  /// that are at most kGrownSteps apart: the one that changed most.
  static constexpr std::int64_t kGrownSteps = 200;
  struct Grown {
    std::string name;
    std::int64_t from = -1;
    std::int64_t to = -1;
    double ratio = 0;
  };
  const Grown& grown() const { return grown_; }
  /// The largest move of a weight in the newest complete capture, by its norm and its least and
  /// greatest element: step -1 where none was compared. Where all of these of all weights hardly
  /// moved, the weights did not.
  const Grown& newest_move() const { return newest_move_; }
  /// Of a weight in a step: less than this, all steps of a training leave it what it was.
  static constexpr double kHardly = 1e-6;
  /// Whether some weight moved between two captures that are not before `step`.
  bool MovedSince(std::int64_t step) const {
    return newest_move_.from >= step && newest_move_.from >= 0 &&
           newest_move_.ratio >= kHardly * static_cast<double>(newest_move_.to - newest_move_.from);
  }

  /// Newest capture of any gradient; -1: none was captured.
  std::int64_t gradient_step() const { return gradient_step_; }
  /// Newest capture with a gradient that is not zero; -1: none had one.
  std::int64_t alive_step() const { return alive_step_; }

  /// How many weights the gradient reaches in the newest complete capture: a gradient is alive
  /// where its elements that are not zero have at least kAlive of the mean size of the largest.
  static constexpr double kAlive = 1e-2;
  struct Reach {
    std::int64_t step = -1;
    std::size_t weights = 0;  ///< Without biases; 0: none was captured.
    std::size_t alive = 0;
    std::string dead;  ///< The first that is not alive.
  };
  Reach reach() const { return reach_.step >= 0 ? reach_ : ReachOf(gradients_); }

  struct NotFinite {
    std::string name;
    std::int64_t step = -1;
  };
  /// The first capture of each that was not finite.
  const std::optional<NotFinite>& bad_weight() const { return bad_weight_; }
  const std::optional<NotFinite>& bad_gradient() const { return bad_gradient_; }

 private:
  struct Before {
    std::int64_t step = -1;
    std::uint64_t count = 0;
    double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0;
  };

  void SeeWeight(const format::StatisticRow& row, std::uint32_t series);
  void BeginCapture(std::int64_t step);

  /// Of the gradients of weights in one capture.
  struct Gradients {
    std::int64_t step = -1;
    std::vector<std::pair<std::string, double>> sizes;  ///< Name; mean of what is not zero.
  };
  void SeeGradient(const format::StatisticRow& row);
  static Reach ReachOf(const Gradients& gradients);

  std::uint32_t first_series_ = 0;
  std::vector<Before> before_;  ///< By series, from that on.
  std::int64_t weight_step_ = -1;
  // Of the capture that comes in.
  std::int64_t compared_ = 0;
  bool moved_ = false;
  std::int64_t least_from_ = -1;  ///< Smallest step that a weight was compared with.
  // Of those before it.
  std::int64_t still_from_ = -1;  ///< -1: they moved.
  std::int64_t still_weights_ = 0;
  std::int64_t still_to_ = -1;
  Grown grown_;
  Grown move_;  ///< In the capture that comes in.
  Grown newest_move_;
  std::int64_t gradient_step_ = -1;
  std::int64_t alive_step_ = -1;
  Gradients gradients_;  ///< Of the capture that comes in.
  Reach reach_;          ///< Of the one before it.
  std::optional<NotFinite> bad_weight_, bad_gradient_;
};

}  // namespace telltale::rules
