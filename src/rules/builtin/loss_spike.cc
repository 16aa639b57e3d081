// SPDX-License-Identifier: Apache-2.0
// LossSpike: the loss jumps far above where it was, and comes back.
//
// A jump that stays is Divergence's; so a spike is told when the loss is back. Mini-batch noise is
// no spike: the measure is the spread of the newest losses, the largest of their own excursions,
// and how far the loss has come since the start.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/losses.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::loss_spike {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"stddev", 10, "σ", "Deviations above the median from which a loss is a spike."},
    {"log_stddev", 6, "σ",
     "The same of the losses' logarithms, where all are above 0: the losses of a training that has "
     "nearly learned its samples are those of a few hard ones, far above the median now and then."},
    {"ratio", 1.5, "", "It must be this many times the median, too (where that is above 0)."},
    {"least_percent", 10, "%", "Of the first losses: a smaller excess is none."},
    {"window_steps", 50, "steps", "Newest losses, of which median and deviation are taken."},
    {"max_steps", 50, "steps", "A loss that is not back after so many has a new level."},
    {"forget_steps", 300, "steps", "The incident is over when none came for so many."},
};

constexpr std::size_t kMinWindow = 20;
constexpr std::size_t kSpikesNamed = 8;

struct Spike {
  LossPoint first;
  double before = 0;  ///< Median of the losses before it.
  double sigma = 0;
  double lr_before = 0;
  double peak = 0;
  std::int64_t peak_step = -1;
  std::int64_t back_step = -1;
  double cost_s = 0;
};

struct Trace : TrainingProcess {
  std::deque<double> window;  ///< The newest losses that are in no spike.
  SortedValues sorted;        ///< The same.
  std::vector<double> first;  ///< The first three.
  double lr_before = 0;       ///< Of the newest loss that is in no spike.
  std::optional<Spike> now;
  std::deque<Spike> spikes;  ///< Of the open incident, the newest.
  std::int64_t count = 0;
  double cost_s = 0;
};

class LossSpike final : public LossRule<Trace> {
 public:
  explicit LossSpike(const Parameters& p)
      : stddev_(p.Get("stddev")),
        log_stddev_(p.Get("log_stddev")),
        ratio_(p.Get("ratio")),
        least_(p.Get("least_percent") / 100),
        window_(
            static_cast<std::size_t>(std::max<std::int64_t>(kMinWindow, p.GetInt("window_steps")))),
        max_steps_(std::max<std::int64_t>(1, p.GetInt("max_steps"))),
        forget_(std::max<std::int64_t>(1, p.GetInt("forget_steps"))) {}

 private:
  void OnLoss(Trace* trace, const LossPoint& p, Reporter* reporter) override {
    if (trace->open && !trace->now && p.step - trace->spikes.back().back_step > forget_) {
      Recover(trace, reporter);
    }
    if (!std::isfinite(p.value)) {  // NonFiniteOrigin's, and LossNotDecreasing's.
      trace->now.reset();
      return;
    }
    if (trace->now) {
      Follow(trace, p, reporter);
      return;
    }
    if (trace->first.size() < 3) trace->first.push_back(p.value);
    if (trace->window.size() >= kMinWindow) {
      SeesData();
      if (Jumps(*trace, p)) {
        const Level level = LevelOf(trace->sorted);
        trace->now = Spike{p, level.median, level.sigma, trace->lr_before, p.value, p.step, -1, 0};
        return;
      }
    }
    Keep(trace, p);
  }

  void Keep(Trace* trace, const LossPoint& p) {
    trace->window.push_back(p.value);
    trace->sorted.Insert(p.value);
    if (trace->window.size() > window_) {
      trace->sorted.Erase(trace->window.front());
      trace->window.pop_front();
    }
    trace->lr_before = p.lr;
  }

  bool Jumps(const Trace& trace, const LossPoint& p) const {
    // Cheap first: nearly every loss is none.
    const double largest = trace.sorted.Largest();
    if (p.value <= largest) return false;
    const double start = std::abs(MedianOf(trace.first));
    const Level level = LevelOf(trace.sorted);
    const double excess = p.value - level.median;
    const double sigma = std::max(level.sigma, 1e-3 * std::abs(level.median));
    return excess > stddev_ * sigma && excess > 2 * (largest - level.median) &&
           excess > least_ * start && (level.median <= 0 || p.value > ratio_ * level.median) &&
           JumpsInLogarithms(trace, p);
  }

  bool JumpsInLogarithms(const Trace& trace, const LossPoint& p) const {
    std::vector<double> logarithms;
    logarithms.reserve(trace.window.size());
    for (const double value : trace.window) {
      if (value <= 0) return true;
      logarithms.push_back(std::log(value));
    }
    const Level level = LevelOf(std::move(logarithms));
    return std::log(p.value) - level.median > log_stddev_ * level.sigma;
  }

  void Follow(Trace* trace, const LossPoint& p, Reporter* reporter) {
    Spike& spike = *trace->now;
    if (p.value > spike.peak) {
      spike.peak = p.value;
      spike.peak_step = p.step;
    }
    const double back = spike.before + std::max(3 * spike.sigma, 0.1 * (spike.peak - spike.before));
    if (p.value <= back) {
      spike.back_step = p.step;
      spike.cost_s = std::max(0.0, p.worked_s - spike.first.worked_s);
      Confirm(trace, p, reporter);
      Keep(trace, p);
    } else if (p.step - spike.first.step >= max_steps_) {
      // Not a spike: it stays. What it is now is learned anew.
      trace->now.reset();
      trace->window.clear();
      trace->sorted.Clear();
      Keep(trace, p);
    }
  }

  void Confirm(Trace* trace, const LossPoint& p, Reporter* reporter) {
    const Spike spike = *std::exchange(trace->now, std::nullopt);
    if (!trace->open) {
      traces().Open(trace, spike.first.step, spike.first.time_ns);
      trace->spikes.clear();
      trace->count = 0;
      trace->cost_s = 0;
    }
    trace->spikes.push_back(spike);
    if (trace->spikes.size() > kSpikesNamed) trace->spikes.pop_front();
    ++trace->count;
    trace->cost_s += spike.cost_s;
    Describe(trace, p);
    reporter->Report(trace->incident);
  }

  void Describe(Trace* trace, const LossPoint& p) {
    Incident& incident = trace->incident;
    const Spike& spike = *std::max_element(
        trace->spikes.begin(), trace->spikes.end(),
        [](const Spike& a, const Spike& b) { return a.peak - a.before < b.peak - b.before; });
    incident.last_step = p.step;
    incident.end_ns = std::max(incident.start_ns, p.time_ns);
    incident.cost_seconds = trace->cost_s;
    const std::int64_t lost = spike.back_step - spike.first.step;
    incident.severity = std::max(
        incident.severity, trace->count >= 3 || lost >= 20 ? Severity::kMedium : Severity::kLow);
    incident.message = trace->count == 1 ? std::string("The loss jumped and came back")
                                         : fmt::format("The loss jumped {} times", trace->count);
    const std::string jump = fmt::format(
        "In step {} the loss jumped from {} to {} and was back after {} {}", spike.first.step,
        Figure(spike.before), Figure(spike.peak), lost, lost == 1 ? "step" : "steps");
    const bool rate = std::isfinite(spike.first.lr) && spike.lr_before > 0 &&
                      spike.first.lr > 1.5 * spike.lr_before;
    if (rate) {
      incident.cause = fmt::format("{}, when the learning rate rose from {} to {}.", jump,
                                   Figure(spike.lr_before), Figure(spike.first.lr));
      incident.advice = "Let the learning rate rise over more steps (warm-up), or clip gradients.";
    } else if (spike.peak_step == spike.first.step) {
      incident.cause = fmt::format(
          "{}: the loss is the largest in the first step of the jump. Either the batch of that "
          "step "
          "is unlike the others, or the update of the step before went too far.",
          jump);
      incident.advice = fmt::format(
          "Look at the batch of step {}: labels, range and length of its samples. Where it is like "
          "the others, lower the learning rate. Clip gradients, so that one batch cannot move the "
          "weights far.",
          spike.first.step);
    } else {
      incident.cause = fmt::format(
          "{}; it rose until step {}: steps of the optimizer led away from where it was.", jump,
          spike.peak_step);
      incident.advice =
          "Clip gradients (clip_grad_norm_) and lower the learning rate; with Adam a larger "
          "epsilon or a beta2 of 0.95 helps.";
    }
    incident.confidence =
        std::min(0.95, 0.6 + 0.01 * (spike.peak - spike.before) / std::max(spike.sigma, 1e-300));
    nlohmann::ordered_json evidence;
    evidence["spikes"] = trace->count;
    evidence["step"] = spike.first.step;
    evidence["before"] = Rounded(spike.before);
    evidence["deviation"] = Rounded(spike.sigma);
    evidence["peak"] = Rounded(spike.peak);
    evidence["peak_step"] = spike.peak_step;
    evidence["steps_until_back"] = lost;
    if (std::isfinite(spike.first.lr)) evidence["learning_rate"] = Rounded(spike.first.lr);
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (const Spike& s : trace->spikes) steps.push_back(s.first.step);
    evidence["steps"] = steps;
    incident.evidence = JsonText(evidence);
  }

  const double stddev_;
  const double log_stddev_;
  const double ratio_;
  const double least_;
  const std::size_t window_;
  const std::int64_t max_steps_;
  const std::int64_t forget_;
};

}  // namespace

const RuleDesc kLossSpikeDesc{
    .name = "LossSpike",
    .summary = "The training loss jumps far above where it was, and comes back.",
    .formula =
        "median and σ = scaled median absolute deviation (at least 0.1 % of the median) of the "
        "newest window_steps losses that are in no spike. A loss is a spike where it exceeds the "
        "median by more than stddev × σ, by more than twice the largest excess in the window, by "
        "more than least_percent of the first losses, is above ratio × median and, where all in "
        "the window are above 0, its logarithm exceeds theirs by log_stddev deviations. It is back "
        "where it is at most max(3 × σ, a tenth of the jump) above the median; what is not back "
        "after max_steps has a new level (Divergence's) and is no spike. Not judged in "
        "reinforcement learning; another fit in the process begins anew (Divergence). Told when it "
        "is back: "
        "low, medium from three spikes on or 20 steps until it was back. Over where none came for "
        "forget_steps, and where the process ends. Cost = time of the steps from each jump until "
        "it was back, less waits for data.",
    .how_to_fix =
        "Look at the batches of the steps that are named. Clip gradients, so that one batch cannot "
        "move the weights far; skip batches whose loss is far from the median; warm the learning "
        "rate up more slowly.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "One batch of 5,000 has inputs that were never normalized.",
    .standing = {.theme = Theme::kNumbers, .order = 3},
    .data_mask = DataMask(Datum::kLoss),
};

std::unique_ptr<Rule> MakeLossSpike(const Parameters& parameters) {
  return std::make_unique<LossSpike>(parameters);
}

}  // namespace telltale::rules::loss_spike
