// SPDX-License-Identifier: Apache-2.0
// Why a loss does not fall, and what to do: from what is known of this training, in the order of
// how certain it is. Where nothing is known it says so, with the command that tells more. A table
// of usual learning rates is no evidence, so there is none.
//
// Thread safety: stateless.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "rules/builtin/captured_parameters.h"
#include "rules/builtin/training_facts.h"

namespace telltale::rules {

/// How a loss is ill.
enum class LossTrouble : std::uint8_t {
  kFlat,       ///< It never fell.
  kDiverged,   ///< It stands above its start.
  kRegained,   ///< It fell, and rose again.
  kNotFinite,  ///< It is NaN or Inf.
  kStill,      ///< It fell, and nothing moves the weights any more.
  kChance,     ///< It stands where guessing stands.
  kStood,      ///< It fell, and has stood for as long as it fell.
};

struct LossView {
  LossTrouble trouble = LossTrouble::kFlat;
  double first = 0;                                          ///< The very first loss.
  double start = 0;                                          ///< Level at the start.
  double level = 0;                                          ///< Level now.
  double newest = std::numeric_limits<double>::quiet_NaN();  ///< The newest finite loss.
  double peak = 0;
  std::int64_t peak_step = -1;
  double peak_rate = std::numeric_limits<double>::quiet_NaN();
  /// The largest learning rate in the steps that were judged; NaN: not known.
  double rate = std::numeric_limits<double>::quiet_NaN();
  double drop = 0;          ///< Of the line through all losses since the start,
  double drop_error = 0;    ///< its standard error,
  double steps = 0;         ///< and over so many steps.
  bool all_rounds = false;  ///< Of boosting: no round follows.
  /// Of boosting: rounds times learning rate; NaN of anything else.
  double whole_trees = std::numeric_limits<double>::quiet_NaN();
  std::int64_t since = -1;
  std::int64_t bad_step = -1;  ///< Of kNotFinite: the first.
  bool creeps = false;         ///< Of kChance: it falls beyond doubt, but hardly.
};

struct LossCause {
  std::string cause;
  std::string advice;
  /// Rules whose finding, where there is one, is the cause of what the loss does.
  std::vector<std::string> explained_by = {};
  /// Rules whose findings follow from this.
  std::vector<std::string> explains = {};
  bool chance = false;  ///< It stands where guessing stands.
};

LossCause ExplainLoss(const LossView& loss, const TrainingFacts& facts, const LearningRates& rates,
                      const CapturedParameters& captured);

/// The cause that lies in the loop itself, where one is known for certain: whatever the loss does,
/// it comes first. Empty where there is none.
LossCause LoopCause(const TrainingFacts& facts);

/// Loss of a model that gives each of so many classes the same probability.
double ChanceLoss(std::int64_t classes);
/// Share of ChanceLoss within which a loss stands at it.
inline constexpr double kNearChance = 0.03;
/// Where all trees of a boosted model together, each at its learning rate, make up less than this
/// of one tree, they have hardly changed what the model says.
inline constexpr double kFewTrees = 0.5;

}  // namespace telltale::rules
