// SPDX-License-Identifier: Apache-2.0
// WeightUpdateRatio: weights change too much, or not at all, from capture to capture.
//
// With values the ratio is that of SageMaker Debugger's rule of this name. Of statistics only what
// they prove is used: that the norm changed by so much, or that nothing did. What starts at
// (nearly) zero grows by any factor and is no defect; weights without a gradient are
// UnusedParameters'.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/builtin/units.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::weight_update_ratio {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"num_steps", 0, "steps",
     "Distance of the two captures that are compared, at least; 0: the newest two."},
    {"large_threshold", 10.0, "", "Ratio above which updates are too large."},
    {"small_threshold", 1e-8, "", "Ratio below which updates are too small."},
    {"epsilon", 1e-9, "", "Added to the norm of the weights, so that nothing is divided by zero."},
};

constexpr CaptureNeed kCaptures[] = {
    {"weights", "statistics", 100},
    {"gradients", "statistics", 100},
};

/// Weights that are smaller than this in root mean square start at zero, or nearly so (LayerScale).
constexpr double kNearlyZero = 1e-4;
/// So few numbers, of this root mean square at most, are where the data has sent them, wherever
/// they started: a location, a scale, the weights of a linear model.
constexpr std::uint64_t kFew = 64;
constexpr double kOfDataSize = 2;
/// Captures in a row before updates that are too small are said: a learning rate may start at 0.
constexpr int kSmallInRow = 2;

class WeightUpdateRatio final : public TensorRule {
 public:
  explicit WeightUpdateRatio(const Parameters& p)
      : TensorRule(1),
        num_steps_(std::max<std::int64_t>(0, p.GetInt("num_steps"))),
        large_(p.Get("large_threshold")),
        small_(p.Get("small_threshold")),
        epsilon_(p.Get("epsilon")) {}

 protected:
  bool Selects(const Series& series) override {
    return series.collection == "weights" || series.collection == "gradients";
  }

  std::optional<Verdict> OnStatistic(const Tensor& tensor, Process* process,
                                     const format::StatisticRow& row) override {
    if (tensor.is_gradient) {
      process->gradient_step = std::max(process->gradient_step, row.step);
      // What is not finite moves no weight: the step is left out, or the weight becomes NaN too.
      if (row.zero_count + row.nan_count + row.inf_count < row.count) {
        Beside(&weights_, tensor).alive_step = row.step;
      }
      return std::nullopt;
    }
    if (row.nan_count + row.inf_count > 0) return std::nullopt;
    const Statistics now{row.step, row.count, row.min, row.max, row.mean, row.std, row.l1, row.l2};
    // First the gradient's: what is found beside another tensor may move this one.
    const std::int64_t alive_step = AliveStep(tensor);
    Weight& weight = Beside(&weights_, tensor);
    if (weight.first_step < 0) weight.first_step = row.step;
    const Statistics* before = Before(&weight.statistics, row.step);
    // What values were taken of is judged by them.
    std::optional<Verdict> verdict;
    if (before != nullptr && before->count == now.count && !tensor.by_values) {
      verdict = Compare(&weight, *before, now, *process, alive_step);
    }
    if (!Wanted(weight.statistics, row.step)) return verdict;
    if (num_steps_ == 0 && !weight.statistics.empty()) {
      weight.statistics.front() = now;  // The newest alone is ever compared with.
    } else {
      weight.statistics.push_back(now);
    }
    return verdict;
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process* process, const Record& record,
                                  const format::TensorRow& row) override {
    if (tensor.is_gradient) return std::nullopt;
    const auto shape = ShapeOf(row.shape);
    if (!shape || ElementsOf(*shape) == 0 || ElementsOf(*shape) > kMostOfOne) return std::nullopt;
    auto values = Read(record, kMostOfOne);
    if (!values) return std::nullopt;
    const std::int64_t alive_step = AliveStep(tensor);
    Weight& weight = Beside(&weights_, tensor);
    if (weight.first_step < 0) weight.first_step = row.step;
    for (const Values& old : weight.values) kept_elements_ -= old.values.size();
    const Values* before = Before(&weight.values, row.step);
    Values now{row.step, std::move(*values)};
    double change = 0;
    double norm = 0;
    double norm_now = 0;
    const bool comparable = before != nullptr && before->values.size() == now.values.size();
    const std::int64_t before_step = before != nullptr ? before->step : -1;
    for (std::size_t i = 0; comparable && i < now.values.size(); ++i) {
      const double difference = now.values[i] - before->values[i];
      change += difference * difference;
      norm += before->values[i] * before->values[i];
      norm_now += now.values[i] * now.values[i];
    }
    const std::uint64_t elements = now.values.size();
    const double count = static_cast<double>(elements);
    if (kept_elements_ + now.values.size() <= kMostOfAll && Wanted(weight.values, row.step)) {
      weight.values.push_back(std::move(now));
    }
    for (const Values& kept : weight.values) kept_elements_ += kept.values.size();
    if (!comparable || !std::isfinite(change) || !std::isfinite(norm)) return std::nullopt;
    const double ratio = std::sqrt(change) / (std::sqrt(norm) + epsilon_);
    if (ratio > large_ && IsArrival(weight, before_step, elements, std::sqrt(norm_now))) {
      return Verdict{false, ratio, 1};
    }
    return Judge(&weight, kByValues, *process, {before_step, row.step, alive_step}, ratio, true,
                 std::sqrt(norm / count));
  }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const Tensor* worst = ill.front();
    std::size_t large = 0;
    for (const Tensor* tensor : ill) {
      if (Beside(&weights_, *tensor).large) ++large;
      if (tensor->value > worst->value) worst = tensor;
    }
    const std::size_t judged = Judged(process);
    const Weight& weight = Beside(&weights_, *worst);
    if (large > 0) {
      incident->severity = Severity::kHigh;
      incident->message = fmt::format("{} of {} weights change too much", large, judged);
      incident->cause =
          fmt::format("From step {} to {} {} changed by {}{} times its own size, above {}.",
                      weight.from_step, weight.to_step, worst->name,
                      worst->by_values ? "" : "at least ", Figure(worst->value), Figure(large_));
      incident->advice =
          "Lower the learning rate or warm it up, and clip gradients; look at the scale of the "
          "loss "
          "and of the inputs.";
      incident->confidence = 0.9;
    } else {
      incident->severity = ill.size() * 2 >= judged ? Severity::kHigh : Severity::kMedium;
      incident->message = fmt::format("{} of {} weights do not move", ill.size(), judged);
      const bool alive = AliveStep(*worst) >= weight.from_step;
      incident->cause = fmt::format(
          "From step {} to {} {} changed by {} times its own size, below {}{}{}.", weight.from_step,
          weight.to_step, worst->name, Figure(worst->value), Figure(small_),
          alive ? ", though it has a gradient" : "; no gradient of it was captured",
          ill.size() > 1 ? fmt::format("; so did {} more", ill.size() - 1) : std::string());
      incident->advice =
          alive ? "Look at the learning rate of its parameter group and its schedule, and whether "
                  "updates are lost in float16 or bfloat16 weights: keep them in float32."
                : "Look whether backward() reaches it: an optimizer that was made for another "
                  "model, a detach(), no_grad(); then at the learning rate of its parameter group.";
      incident->confidence = 0.85;
      (*evidence)[kExplainedBy] = {"LearningRateSchedule", "OptimizerParameters"};
    }
    (*evidence)["too_large"] = large;
    (*evidence)["from_step"] = weight.from_step;
    (*evidence)["to_step"] = weight.to_step;
    (*evidence)["worst"] = worst->name;
    (*evidence)["large_threshold"] = large_;
    (*evidence)["small_threshold"] = small_;
  }

 private:
  static constexpr std::size_t kMostOfOne = std::size_t{1} << 18U;
  static constexpr std::size_t kMostOfAll = std::size_t{1} << 22U;
  static constexpr std::int64_t kKept = 32;  ///< Kept over num_steps, at most about.

  enum Source : std::size_t { kByStatistics, kByValues };
  struct Steps {
    std::int64_t before, now;  ///< Of the two captures.
    std::int64_t alive;        ///< Newest at which the gradient could move it; -1: it has none.
  };
  struct Statistics {
    std::int64_t step;
    std::uint64_t count;
    double min, max, mean, std, l1, l2;
  };
  struct Values {
    std::int64_t step;
    std::vector<double> values;
  };

  /// What is kept of a weight, or of a gradient.
  struct Weight {
    std::vector<Statistics> statistics;  ///< Captures that may still be compared with: few.
    std::deque<Values> values;
    std::int64_t first_step = -1;       ///< Of its first capture.
    std::int64_t alive_step = -1;       ///< Of a gradient: newest capture that can move a weight.
    std::array<int, 2> small_in_row{};  ///< By Source.
    bool large = false;
    std::int64_t from_step = -1, to_step = -1;  ///< Of the newest verdict.
  };

  /// The newest capture that is far enough before `step`, null where there is none; those before
  /// it are let go. Valid until another is kept.
  template <class Captures>
  const typename Captures::value_type* Before(Captures* captures, std::int64_t step) const {
    const std::int64_t limit = num_steps_ > 0 ? step - num_steps_ : step - 1;
    std::ptrdiff_t past = 0;
    while (past + 1 < std::ssize(*captures) && captures->begin()[past + 1].step <= limit) ++past;
    if (past > 0) captures->erase(captures->begin(), captures->begin() + past);
    if (captures->empty() || captures->front().step > limit) return nullptr;
    return &captures->front();
  }

  /// The verdict of statistics on two captures of as many elements.
  std::optional<Verdict> Compare(Weight* weight, const Statistics& before, const Statistics& now,
                                 const Process& process, std::int64_t alive_step) const {
    const double ratio = std::abs(now.l2 - before.l2) / (before.l2 + epsilon_);
    // Of a ratio between the thresholds, as it mostly is, neither is asked.
    const bool same = ratio < small_ && now.min == before.min && now.max == before.max &&
                      now.mean == before.mean && now.std == before.std && now.l1 == before.l1 &&
                      now.l2 == before.l2;
    const double size = ratio < small_ || ratio > large_
                            ? before.l2 / std::sqrt(static_cast<double>(before.count))
                            : 0;
    if (ratio > large_ && IsArrival(*weight, before.step, now.count, now.l2)) {
      return Verdict{false, ratio, 1};
    }
    return Judge(weight, kByStatistics, process, {before.step, now.step, alive_step}, ratio, same,
                 size);
  }

  /// Whether a capture is to be kept: over a large distance not each of them is.
  template <class Captures>
  bool Wanted(const Captures& captures, std::int64_t step) const {
    return captures.empty() || step - captures.back().step >= num_steps_ / kKept;
  }

  /// Newest step at which an element of the weight's gradient was finite and not zero; -1: it has
  /// none.
  std::int64_t AliveStep(const Tensor& parameter) {
    const Tensor* gradient = GradientTensor(parameter);
    return gradient == nullptr ? -1 : Beside(&weights_, *gradient).alive_step;
  }

  /// Whether few numbers have left where they started, and are no larger than data is.
  static bool IsArrival(const Weight& weight, std::int64_t before_step, std::uint64_t count,
                        double norm) {
    return before_step == weight.first_step && count <= kFew &&
           norm <= kOfDataSize * std::sqrt(static_cast<double>(count));
  }

  /// `exact`: the ratio is what it is, not only at least that.
  std::optional<Verdict> Judge(Weight* weight, Source source, const Process& process, Steps steps,
                               double ratio, bool exact, double size_before) const {
    weight->from_step = steps.before;
    weight->to_step = steps.now;
    weight->large = ratio > large_ && size_before >= kNearlyZero;
    // Without a gradient it is frozen or not used: UnusedParameters'. Where no gradient of any is
    // captured nothing is known of that.
    const bool pulled = process.gradient_step < 0 || steps.alive >= steps.before;
    const bool small = exact && ratio < small_ && pulled && size_before > 0;
    int& in_row = weight->small_in_row[source];
    in_row = small ? in_row + 1 : 0;
    return Verdict{weight->large || in_row >= kSmallInRow, ratio, 1};
  }

  const std::int64_t num_steps_;
  const double large_, small_, epsilon_;
  std::vector<Weight> weights_;  ///< By id of the tensor, gradients too.
  std::size_t kept_elements_ = 0;
};

}  // namespace

const RuleDesc kWeightUpdateRatioDesc{
    .name = "WeightUpdateRatio",
    .summary = "Weights change too much, or not at all.",
    .formula =
        "ratio = ‖w − w_before‖ / (‖w_before‖ + epsilon), Euclidean norms, between a capture and "
        "the newest one at least num_steps steps before it (0: the one before; of a distance that "
        "holds many captures some are left out), of each tensor of the collection weights whose "
        "adapter does not call it a bias. From values of up to 262,144 elements (4 Mi of all "
        "together); else from statistics: |‖w‖ − ‖w_before‖| is the least that the numerator can "
        "be, and it is 0 where all statistics are the same to the last digit; nothing in between. "
        "Too large: ratio > large_threshold, unless w_before is below 1e-4 in root mean square "
        "(what starts at zero), or w has up to 64 elements, was captured the first time before, "
        "and is up to 2 in root mean square now (a few parameters, such as a learned scale, that "
        "may well move far from where they started). Too small: ratio < small_threshold in two "
        "captures in a row, while an element of its gradient is finite and not zero (where "
        "gradients are captured). Over where each tensor was well in two captures, and where the "
        "process ends. High where any is too large or half of them too small; else medium. Cost = "
        "time of the steps, less waits for data, × the share of the judged elements that is ill, "
        "on the assumption that its training is lost.",
    .how_to_fix =
        "Too large: lower the learning rate or warm it up, clip gradients. Too small: look at the "
        "learning rate of the parameter group, at its schedule, and at updates that are lost in "
        "half precision.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    // What it needs is captured for others in any case.
    .by_default = true,
    .example =
        "`torch.optim.SGD(model.parameters(), lr=50)`: after the first hundred steps the weights "
        "are ten times what they were.",
    .standing = {.theme = Theme::kLayers, .order = 6},
};

std::unique_ptr<Rule> MakeWeightUpdateRatio(const Parameters& parameters) {
  return std::make_unique<WeightUpdateRatio>(parameters);
}

}  // namespace telltale::rules::weight_update_ratio
