// SPDX-License-Identifier: Apache-2.0
// Signs of reinforcement learning. Its losses are measured on data that the model itself makes, and
// rise while it gets better: what a loss does says nothing there.
//
// Thread safety: none. Memory: a few numbers a process.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "format/records.gen.h"

namespace telltale::rules {

class ReinforcementSigns {
 public:
  /// A scalar that only reinforcement learning has.
  static bool IsName(std::string_view name) {
    constexpr std::array<std::string_view, 12> kNames = {
        "policy_loss", "policy_gradient", "value_loss",   "actor_loss",
        "critic_loss", "advantage",       "ep_rew",       "episode_reward",
        "approx_kl",   "td_error",        "entropy_loss", "explained_variance"};
    return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view part) {
      return name.find(part) != std::string_view::npos;
    });
  }
  void SeeName() { named_ = true; }

  /// The event by which a process says that its model acts in an environment.
  static bool IsEvent(std::string_view kind) { return kind == "environment"; }
  void SeeEvent() { named_ = true; }

  /// A loss of TRAIN, in order.
  void SeeLoss(double value) {
    if (!std::isfinite(value)) return;
    ++losses_;
    largest_ = std::max(largest_, std::abs(value));
    // The noise of a loss that has come near to 0 is no sign.
    if (std::abs(value) < kNearZero * largest_) return;
    const bool below = value < 0;
    if (losses_ > 1 && below != below_) ++flips_;
    below_ = below;
  }
  /// A loss of an evaluation: what is measured there is no rollout.
  void SeeEvaluation() { evaluated_ = true; }

  void SeeStep(const format::StepRow& step) {
    if (step.mode == "TRAIN") {
      ++train_steps_;
      train_samples_ += static_cast<double>(step.batch_size);
      // An evaluation in batches ends with one of few samples; who acts makes mostly such.
      if (pending_ > many_) {
        ++rollouts_;
        few_ += pending_;
      }
      pending_ = many_ = 0;
      return;
    }
    const bool few = step.batch_size > 0 && step.batch_size <= kMostActors &&
                     static_cast<double>(4 * step.batch_size * train_steps_) <= train_samples_;
    if (few) {
      ++pending_;
    } else if (step.batch_size > 0) {
      ++many_;
    }
  }

  bool Found() const { return named_ || Flips() || Rollouts(); }

  static constexpr std::string_view kWord =
      "reinforcement learning: its losses may rise while it gets better";
  /// Why a rule about losses has not judged.
  static constexpr std::string_view kMissing =
      "the losses of reinforcement learning may rise while it gets better";

 private:
  static constexpr std::int64_t kLeast = 20;
  static constexpr double kNearZero = 0.02;        ///< Of the largest loss.
  static constexpr std::int64_t kMostActors = 64;  ///< That act at once.

  /// A loss that is on its way below 0 changes its sign for a while, not always.
  bool Flips() const { return flips_ >= kLeast && flips_ * 10 >= losses_; }
  /// Forward passes of few samples each, again and again between the steps of training, and never a
  /// loss of them.
  bool Rollouts() const { return !evaluated_ && rollouts_ >= kLeast && few_ * 10 >= train_steps_; }

  bool named_ = false;  ///< A scalar or an event says so.
  bool evaluated_ = false;
  bool below_ = false;
  double largest_ = 0;
  std::int64_t losses_ = 0;
  std::int64_t flips_ = 0;
  std::int64_t pending_ = 0;   ///< Forward passes of few samples since the last step of training.
  std::int64_t many_ = 0;      ///< Those of more samples since then.
  std::int64_t few_ = 0;       ///< Those of few samples where they were most.
  std::int64_t rollouts_ = 0;  ///< Times that such came between two steps of training.
  std::int64_t train_steps_ = 0;
  double train_samples_ = 0;
};

}  // namespace telltale::rules
