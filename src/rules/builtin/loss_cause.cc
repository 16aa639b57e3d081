// SPDX-License-Identifier: Apache-2.0
// Why a loss does not fall, and what to do.
#include "rules/builtin/loss_cause.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "rules/builtin/numbers.h"

namespace telltale::rules {
namespace {

constexpr const char* kNotFound = "cause not found";
constexpr const char* kOriginCommand =
    "Run again with `--rule NonFiniteOrigin`: it names the first module and step that is not "
    "finite.";
/// A first loss of a new model above this: its inputs or targets are far from the size of 1.
constexpr double kHugeLoss = 1e4;
/// Of a weight between two captures: more than this, and no progress of the loss, is too much.
constexpr double kGrown = 0.7;

std::string AtRate(double rate) {
  return std::isfinite(rate) ? fmt::format(" at learning rate {}", Figure(rate)) : std::string();
}

std::string Lower(double rate) {
  return std::isfinite(rate)
             ? fmt::format("Lower the learning rate from {} to {}", Figure(rate), Figure(rate / 10))
             : std::string("Lower the learning rate tenfold");
}

std::string Raise(double rate) {
  return std::isfinite(rate)
             ? fmt::format(
                   "Raise the learning rate from {} to {}, and further while the first 100 "
                   "steps do not go down.",
                   Figure(rate), Figure(10 * rate))
             : std::string(
                   "Raise the learning rate tenfold, and further while the first 100 steps "
                   "do not go down.");
}

constexpr const char* kNormalize =
    "Normalize the inputs and the targets (subtract the mean of each column, divide by its "
    "standard deviation); then look at the first 100 steps.";

/// "1 NaN in 1 of 64 rows, first in row 17".
std::string BadRows(const TrainingFacts::NotFinite& from) {
  std::string values;
  if (from.nan > 0) values = fmt::format("{} NaN", from.nan);
  if (from.inf > 0) values += fmt::format("{}{} Inf", values.empty() ? "" : " and ", from.inf);
  if (from.rows <= 0 || from.of_rows <= 0) return values;
  return fmt::format("{} in {} of {} rows, first in row {}", values, from.rows, from.of_rows,
                     from.row);
}

/// Layers that pass on no gradient let no loss fall.
std::vector<std::string> LayerRules() {
  return {"VanishingGradient", "PoorWeightInitialization", "SaturatedActivation", "DeadRelu",
          "AllZero"};
}

/// What the graph of the first loss that is not finite says. Empty where it says nothing.
LossCause ExplainOrigin(const LossView& loss, const TrainingFacts::NotFinite& from) {
  if (from.origin == "batch" || from.origin == "targets") {
    const bool targets = from.origin == "targets";
    return {
        fmt::format("The {} of step {} {} not finite: {}. All {} weights were still finite.",
                    targets ? "targets" : "input data", from.step, targets ? "are" : "is",
                    BadRows(from), from.weights),
        "Find these samples (torch.isfinite over the whole data set, once before the training), "
        "and "
        "drop, fill or clean them. Weights that such a batch has touched are lost: go back to a "
        "checkpoint before it."};
  }
  if (from.origin == "operation") {
    // Others that begin so (log1p, log_softmax) have another range, and another remedy.
    const bool log =
        from.operation == "log" || from.operation == "log2" || from.operation == "log10";
    const std::string given =
        from.undefined > 0
            ? fmt::format(" it was given {} {}, for which it has no finite result", from.undefined,
                          log ? (from.undefined == 1 ? "value that is zero or below"
                                                     : "values that are zero or below")
                          : from.undefined == 1 ? "value that is zero or outside of its range"
                                                : "values that are zero or outside of its range")
            : std::string(" it was given finite values");
    return {
        fmt::format("In the forward pass of step {} the first NaN or Inf comes from the operation "
                    "{}:{}. Weights and inputs were finite.",
                    from.step, from.operation, given),
        log ? "Compute the loss from the raw scores (BCEWithLogitsLoss, CrossEntropyLoss, "
              "logsigmoid, log_softmax), or clamp what goes into the log to at least an epsilon."
            : "Keep its input away from such values: clamp it, or add an epsilon. `--rule "
              "NonFiniteOrigin` names the module."};
  }
  if (from.origin == "weights" && loss.bad_step > 0 && std::isfinite(loss.newest)) {
    return {fmt::format(
                "The loss of step {} was still finite ({}), and after that step {} of {} weights "
                "{} not{}: probably its backward pass made gradients that are NaN or Inf.",
                loss.bad_step - 1, Figure(loss.newest), from.bad_weights, from.weights,
                from.bad_weights == 1 ? "is" : "are",
                from.first.empty() ? std::string() : fmt::format(" ({})", from.first)),
            fmt::format("Look in the loss and the model for a square root, norm, power or division "
                        "at 0, whose derivative is infinite, and add an epsilon inside it; with "
                        "float16 weights an eps of 1e-8 (Adam) rounds to 0. {}",
                        kOriginCommand)};
  }
  return {};
}

LossCause ExplainNotFinite(const LossView& loss, const TrainingFacts& facts,
                           const LearningRates& rates, const CapturedParameters& captured) {
  const bool before = loss.bad_step > 0;
  const auto& from = facts.not_finite;
  // Of the first NaN of the process, and not of a later one.
  const bool known = from && std::abs(from->step - loss.bad_step) <= 1;
  // What such weights, or an overflow, come from says more than where it showed first.
  const bool later =
      known && (from->origin == "weights" || (from->origin == "operation" && from->undefined <= 0));
  if (known && !later) {
    if (LossCause origin = ExplainOrigin(loss, *from); !origin.cause.empty()) return origin;
  }
  const auto& gradient = captured.bad_gradient();
  if (gradient && gradient->step < loss.bad_step) {
    return {fmt::format("In step {} the gradient of {} was not finite, while the loss of that step "
                        "still was: the backward pass made it.",
                        gradient->step, gradient->name),
            fmt::format("Look between this parameter and the loss for a square root, norm or power "
                        "at 0, whose derivative is infinite, and add an epsilon inside it. {}",
                        kOriginCommand)};
  }
  if (std::isfinite(loss.first) && std::abs(loss.first) > kHugeLoss) {
    return {fmt::format("The very first loss was {}, before any step of the optimizer: inputs or "
                        "targets are far from the size of 1, and the first gradients as large.",
                        Figure(loss.first)),
            kNormalize};
  }
  const bool rose = before && loss.start > 0 && loss.peak > 10 * loss.start;
  if (rose) {
    return {
        fmt::format("The loss rose from {} to {} by step {}{}, and then left the range of "
                    "numbers: the steps are too large.",
                    Figure(loss.start), Figure(loss.peak), loss.peak_step, AtRate(loss.peak_rate)),
        fmt::format("{} and look whether the first 100 steps go down.",
                    Lower(std::isfinite(loss.peak_rate) ? loss.peak_rate : rates.now()))};
  }
  if (later) {
    if (LossCause origin = ExplainOrigin(loss, *from); !origin.cause.empty()) return origin;
  }
  if (!before) {
    return {
        "The first loss of all is not finite, before any step of the optimizer: the inputs, "
        "the initial weights or the loss function make it.",
        kOriginCommand};
  }
  return {fmt::format("{}: the loss was {} before step {}, and had not risen.", kNotFound,
                      Figure(loss.newest), loss.bad_step),
          kOriginCommand};
}

/// "StepLR is called at every step", as far as it is known.
std::string ScheduleText(const TrainingFacts& facts, const LearningRates& rates) {
  if (facts.schedules_each_step()) {
    // What was counted before the rate was spent is old.
    const bool counted = !rates.spent() || facts.scheduler->optimizer_steps >= rates.spent()->step;
    return fmt::format("; {} is called at every step{}",
                       facts.scheduler->name.empty() ? "the scheduler" : facts.scheduler->name,
                       counted ? fmt::format(": {} calls in {} steps", facts.scheduler->calls,
                                             facts.scheduler->optimizer_steps)
                               : std::string());
  }
  const auto each = rates.each_step();
  if (!each) return {};
  if (each->factor > 0) {
    return fmt::format(
        "; in each of the steps {} to {} it was multiplied by {}: the scheduler steps per batch",
        each->first, each->last, Figure(each->factor));
  }
  return fmt::format(
      "; it was changed in each of the steps {} to {}: the scheduler steps per batch", each->first,
      each->last);
}

LossCause ExplainSpent(const TrainingFacts& facts, const LearningRates& rates,
                       const CapturedParameters& captured) {
  const TrainingMoment& since = *rates.spent();
  const std::string groups =
      facts.groups > 1 ? fmt::format(" in all {} parameter groups", facts.groups) : std::string();
  std::string still = "the weights do not move";
  if (const auto seen = captured.still()) {
    still = fmt::format("no weight changed from step {} to {}", seen->from, seen->to);
  }
  const std::string schedule = ScheduleText(facts, rates);
  if (rates.largest() == 0) {
    return {
        fmt::format("The learning rate is 0{}, and was so from the start: {}{}.", groups, still,
                    schedule),
        "Set a learning rate above 0, or look at the scheduler: a warm-up that divides integers "
        "stays at 0."};
  }
  LossCause out;
  if (rates.now() == 0 && rates.moving_steps() < rates.zero_steps()) {
    // It was so from the start, but for a few steps.
    return {
        fmt::format("The learning rate is 0{} in all steps but {} (it was {} there): {}{}.", groups,
                    rates.moving_steps(), Figure(rates.largest()), still, schedule),
        "Print what the schedule gives for the first steps: a warm-up that divides whole numbers "
        "with // is 0 until its end."};
  }
  if (rates.now() == 0) {
    out.cause = fmt::format("The learning rate is 0{} since step {} (it was {}): {}{}.", groups,
                            since.step, Figure(rates.largest()), still, schedule);
  } else {
    out.cause = fmt::format(
        "The learning rate fell from {} to {}{}, below 1/10,000 of its largest since step {}: "
        "{}{}.",
        Figure(rates.largest()), Figure(rates.now()), groups, since.step, still, schedule);
  }
  const auto each = rates.each_step();
  const std::string name = facts.scheduler ? facts.scheduler->name : std::string();
  const bool by_epochs = name == "StepLR" || name == "MultiStepLR" || name == "ExponentialLR" ||
                         (name.empty() && each && each->factor > 0);
  out.advice =
      schedule.empty()
          ? "Look at what sets the learning rate there. Give the schedule the length of the whole "
            "training, or end the training where it ends."
      : by_epochs
          ? "Call scheduler.step() once an epoch, not per batch; or give the schedule its length "
            "in "
            "steps, so that it ends with the training."
          : fmt::format(
                "Look at what the schedule gives from step {} on: a length in epochs though "
                "it is stepped per batch, a division of integers, or an end before that of "
                "the training.",
                since.step);
  return out;
}

LossCause ExplainStill(const LossView& loss, const CapturedParameters& captured) {
  const auto seen = captured.still();
  const std::string moved = fmt::format(
      "No weight changed from step {} to {}{}", seen->from, seen->to,
      std::isfinite(loss.rate) ? fmt::format(", though the learning rate is {}", Figure(loss.rate))
                               : std::string());
  const bool alive = captured.alive_step() >= seen->from;
  if (alive) {
    return {moved +
                " and gradients are there: what a step adds is too small for the weights to "
                "hold.",
            "Raise the learning rate, and keep weights in float32 where they are float16 or "
            "bfloat16.",
            {},
            {"WeightUpdateRatio", "UnchangedTensor"}};
  }
  if (captured.gradient_step() >= seen->from) {
    return {
        moved + ": all gradients are zero.",
        "Look where the gradient is lost: an activation that gives only zeros, a loss that does "
        "not depend on the outputs. `--rule DeadRelu` names layers of units that never activate.",
        LayerRules()};
  }
  return {moved + ", and no gradient of them was captured.",
          "Look whether backward() reaches the parameters that the optimizer holds: an optimizer "
          "that was made for another model, a detach(), no_grad(), .data, or a loss that was "
          "computed in NumPy."};
}

LossCause ExplainChance(const LossView& loss, const TrainingFacts& facts,
                        const CapturedParameters& captured) {
  const std::int64_t classes = facts.loss->classes;
  const CapturedParameters::Reach reach = captured.reach();
  if (reach.weights > 0 && 2 * reach.alive <= reach.weights) {
    const auto dead = reach.weights - reach.alive;
    return {
        fmt::format("The loss stands at {}, which is chance level: ln({}) = {} for {} classes. In "
                    "step {} {} of {} weights got a gradient that is 0 or below {:.0f} % of the "
                    "largest ({}{}): they hardly learn.",
                    Figure(loss.level), classes, Figure(ChanceLoss(classes)), classes, reach.step,
                    dead, reach.weights, 100 * CapturedParameters::kAlive, reach.dead,
                    dead > 1 ? fmt::format(" and {} more", dead - 1) : std::string()),
        "Look for what stops the gradient between these layers and the loss: units that never "
        "activate, saturated activations, initial weights that are too small, a detach().",
        LayerRules()};
  }
  const std::string flow = reach.weights > 0
                               ? ", while gradients flow (step " + std::to_string(reach.step) + ")"
                               : std::string();
  if (loss.creeps) {
    return {
        fmt::format(
            "The loss is {}, near chance level: ln({}) = {} for {} classes{}. It falls, "
            "but so slowly that the model learns next to nothing: either labels do not belong to "
            "their inputs, or the inputs hardly tell the classes apart.",
            Figure(loss.level), classes, Figure(ChanceLoss(classes)), classes, flow),
        "Look at some pairs of input and label as they reach the model. Then train on one batch "
        "alone: where its loss goes to 0, try a larger learning rate, more steps, or inputs with "
        "less padding and noise."};
  }
  return {fmt::format("The loss stands at {}, which is chance level: ln({}) = {} for {} classes{}. "
                      "Inputs and labels do not belong together, or the model's outputs do not "
                      "depend on its inputs.",
                      Figure(loss.level), classes, Figure(ChanceLoss(classes)), classes, flow),
          "Look at some pairs of input and label as they reach the model: both shuffled alike, no "
          "shift by one, the right column. Then train on one batch alone: its loss must go to 0."};
}

}  // namespace

double ChanceLoss(std::int64_t classes) { return std::log(static_cast<double>(classes)); }

LossCause LoopCause(const TrainingFacts& facts) {
  const auto& parameters = facts.parameters;
  if (parameters && parameters->all > 0 && parameters->in_called_models == 0) {
    return {fmt::format("None of the {} parameters of the optimizer belongs to a model that was "
                        "called{}.",
                        parameters->all,
                        parameters->without_gradient == parameters->all
                            ? ", and none ever had a gradient"
                            : ""),
            "Make the optimizer of the parameters of the model that is trained, after the model is "
            "made, moved and wrapped for the last time.",
            {"OptimizerParameters"}};
  }
  if (parameters && parameters->all > 0 && parameters->without_gradient == parameters->all) {
    return {fmt::format("None of the {} parameters of the optimizer ever had a gradient.",
                        parameters->all),
            "Look for what cuts the loss from the model: detach(), no_grad(), .data, NumPy, "
            "torch.tensor() of a result; and whether backward() is called.",
            {"OptimizerParameters"}};
  }
  const auto& loss = facts.loss;
  if (loss && loss->shapes_differ) {
    return {fmt::format("{} compares outputs of shape ({}) with targets of shape ({}): it "
                        "broadcasts them against each other, so that each output is compared with "
                        "every target.",
                        loss->name, loss->input_shape, loss->target_shape),
            "Give both the same shape: squeeze() the outputs or unsqueeze() the targets.",
            {"LossFunction"}};
  }
  if (loss && loss->softmax_twice) {
    return {
        fmt::format("The model's outputs go through a softmax, and {} applies a softmax itself: "
                    "twice, so that gradients are tiny.",
                    loss->name.empty() ? "the loss function" : loss->name),
        "Give the loss the raw scores (logits): take the softmax out of the model.",
        {"LossFunction"}};
  }
  if (facts.cleared && !*facts.cleared) {
    return {
        "Gradients are not cleared between two steps of the optimizer: each step adds those of "
        "all steps before it.",
        "Call optimizer.zero_grad() before each backward().",
        {"GradientsNotCleared"}};
  }
  return {};
}

LossCause ExplainLoss(const LossView& loss, const TrainingFacts& facts, const LearningRates& rates,
                      const CapturedParameters& captured) {
  // What makes the loop wrong explains all that follows from it.
  if (LossCause loop = LoopCause(facts); !loop.cause.empty()) {
    if (loss.trouble != LossTrouble::kStood && !rates.spent()) return loop;
  }
  if (loss.trouble == LossTrouble::kNotFinite) {
    LossCause origin = ExplainNotFinite(loss, facts, rates, captured);
    if (origin.advice != kOriginCommand) origin.explains = {"ExplodingTensor", "Divergence"};
    return origin;
  }
  if (rates.spent() && !captured.MovedSince(rates.spent()->step) &&
      !(loss.rate > 0 && loss.rate >= LearningRates::kSpent * rates.largest())) {
    LossCause spent = ExplainSpent(facts, rates, captured);
    spent.explained_by = {"LearningRateSchedule"};
    spent.explains = {"WeightUpdateRatio", "UnchangedTensor"};
    return spent;
  }
  if (loss.trouble == LossTrouble::kStood) {
    return {fmt::format("It fell from {} to {} until step {}, and has stood there since, within "
                        "its noise{}.",
                        Figure(loss.start), Figure(loss.level), loss.since, AtRate(loss.rate)),
            "The training could stop there. Where more is to be had: a lower learning rate, a "
            "larger model, more data.",
            {"DeadRelu", "VanishingGradient", "LearningRateSchedule"}};
  }
  if (loss.trouble == LossTrouble::kFlat && loss.whole_trees < kFewTrees) {
    return {fmt::format("The learning rate (eta) is {}, the share at which each tree is added: the "
                        "trees of {:.0f} rounds add up to {} of one tree. It is too small{}.",
                        Figure(loss.rate), loss.steps, Figure(loss.whole_trees),
                        loss.all_rounds ? "" : ", unless thousands of rounds are to follow"),
            "Raise eta (learning_rate): 0.1 to 0.3 is usual, 0.01 with a thousand rounds or more."};
  }
  if (captured.still() && loss.trouble != LossTrouble::kDiverged) {
    return ExplainStill(loss, captured);
  }
  if (std::isfinite(loss.first) && std::abs(loss.first) > kHugeLoss && loss.peak > 2 * loss.start) {
    return {fmt::format("The very first loss was {}, and the loss rose to {} by step {}: inputs or "
                        "targets are far from the size of 1.",
                        Figure(loss.first), Figure(loss.peak), loss.peak_step),
            kNormalize};
  }
  const bool rose = loss.start > 0 && loss.peak > 2 * loss.start;
  if (rose || loss.trouble == LossTrouble::kDiverged) {
    const double rate = std::isfinite(loss.peak_rate) ? loss.peak_rate : loss.rate;
    return {fmt::format("The loss rose from {} to {} by step {}{}: the steps are too large.",
                        Figure(loss.start), Figure(loss.peak), loss.peak_step, AtRate(rate)),
            fmt::format("{} and look whether the first 100 steps go down.", Lower(rate))};
  }
  const auto& grown = captured.grown();
  if (grown.ratio > kGrown) {
    return {fmt::format("From step {} to {} {} changed by at least {} times its own size{}: the "
                        "steps are too large.",
                        grown.from, grown.to, grown.name, Figure(grown.ratio), AtRate(loss.rate)),
            fmt::format("{} and look whether the first 100 steps go down.", Lower(loss.rate))};
  }
  const auto& move = captured.newest_move();
  const bool hardly =
      move.from >= 0 && captured.alive_step() >= move.from && !captured.MovedSince(move.from);
  if ((loss.trouble == LossTrouble::kFlat || loss.trouble == LossTrouble::kChance) && hardly) {
    return {fmt::format("Gradients are there, but the weights hardly move: from step {} to {} no "
                        "norm and no extreme of a weight changed by more than {} of itself ({}){}. "
                        "The steps are too small.",
                        move.from, move.to, Figure(move.ratio), move.name, AtRate(loss.rate)),
            Raise(loss.rate)};
  }
  const auto& parameters = facts.parameters;
  if ((loss.trouble == LossTrouble::kFlat || loss.trouble == LossTrouble::kChance) && parameters &&
      parameters->left_out > 0 && 2 * parameters->left_out >= parameters->of_models) {
    return {fmt::format("{} of {} parameters of the model are in no optimizer and never change.",
                        parameters->left_out, parameters->of_models),
            "Make the optimizer of all parameters of the model that is trained, after its last "
            "change; keep modules in nn.ModuleList or nn.ModuleDict.",
            {"OptimizerParameters"}};
  }
  // Where the weights move: else it is for that.
  const bool moves = (move.from >= 0 && !hardly) || loss.start > (1 + kNearChance) * loss.level;
  const bool chance = facts.loss && facts.loss->plain && facts.loss->classes >= 2 &&
                      std::abs(loss.level / ChanceLoss(facts.loss->classes) - 1) <= kNearChance;
  if (loss.trouble == LossTrouble::kChance ||
      (chance && moves && loss.trouble == LossTrouble::kFlat)) {
    LossCause why = ExplainChance(loss, facts, captured);
    why.chance = true;
    return why;
  }
  if (loss.trouble == LossTrouble::kFlat && loss.drop > 4 * loss.drop_error && loss.drop > 0) {
    return {fmt::format("The loss falls, steadily and very slowly: by {} % in {:.0f} steps{}. The "
                        "steps are too small.",
                        Figure(100 * loss.drop / std::max(std::abs(loss.start), 1e-300)),
                        loss.steps, AtRate(loss.rate)),
            Raise(loss.rate)};
  }
  if (loss.trouble == LossTrouble::kRegained) {
    return {fmt::format("{}: the loss stands at {} since step {}.", kNotFound, Figure(loss.level),
                        loss.since),
            "Look at what changed at that step: the data, the learning rate, a resumed optimizer "
            "without its state; and go back to a checkpoint before it."};
  }
  return {
      fmt::format("{}: the loss neither rises nor falls{}.", kNotFound, AtRate(loss.rate)),
      "Train on one batch alone: its loss must go to 0. Where it does, look whether labels belong "
      "to their inputs; where it does not, look at the layers: `--rule DeadRelu` names those whose "
      "units never activate.",
      LayerRules()};
}

}  // namespace telltale::rules
