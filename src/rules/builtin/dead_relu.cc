// SPDX-License-Identifier: Apache-2.0
// DeadRelu: most units of a ReLU layer give zero whatever the sample.
//
// SageMaker Debugger's rule of this name knows a ReLU by its name alone. Here an activation is one
// by what it gives too, units are judged over enough samples for the share that is asked for, and
// where no values were taken the share of zeros says what it can prove.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/builtin/units.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::dead_relu {
namespace {

constexpr char kRegex[] = ".*relu_output";

constexpr ParameterDesc kParameters[] = {
    {"tensor_regex", 0, "",
     "Names of the outputs of ReLU layers; with the default also every activation that gives zeros"
     " and nothing below.",
     kRegex},
    {"threshold_inactivity", 1.0, "percent",
     "A unit is dead where it is above zero in less than this share of the samples."},
    {"threshold_layer", 50.0, "percent",
     "A layer is dead where more than this share of its units is."},
    {"patience", 2, "verdicts", "Verdicts in a row before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {
    {"activations", "statistics", 100},
    {"activations", "values", 100},
    {"", "statistics", 100, "{tensor_regex}"},
    {"", "values", 100, "{tensor_regex}"},
};

/// One of several tensors that a module gives: attention weights, states.
bool IsNested(std::string_view name) { return name.find(".output.") != std::string_view::npos; }

class DeadRelu final : public TensorRule {
 public:
  explicit DeadRelu(const Parameters& p)
      : TensorRule(p.GetInt("patience")),
        pattern_(p.Text("tensor_regex")),
        by_behaviour_(p.Text("tensor_regex") == kRegex),
        least_(p.Get("threshold_inactivity") / 100),
        threshold_layer_(p.Get("threshold_layer")) {}

 protected:
  bool Selects(const Series& series) override {
    if (pattern_.Matches(series.name)) return true;
    return by_behaviour_ && series.collection == "activations" && !IsNested(series.name) &&
           series.name.find("softmax") == std::string::npos;
  }

  std::optional<Verdict> OnStatistic(const Tensor& tensor, Process*,
                                     const format::StatisticRow& row) override {
    // Below zero: no ReLU. No zero at all: a sigmoid, or a ReLU that is well.
    if (!(row.min >= 0) || row.nan_count + row.inf_count > 0 || least_ <= 0) return std::nullopt;
    if (row.zero_count == 0 && !Known(tensor).named) return std::nullopt;
    const double above = 1 - static_cast<double>(std::min(row.zero_count, row.count)) /
                                 static_cast<double>(row.count);
    // What lives is above zero in at least least_ of the samples, so that it is at most
    // above / least_ of all. Which outputs are of one channel the statistics do not say.
    const double dead = std::clamp(1 - above / least_, 0.0, 1.0);
    return Verdict{100 * dead > threshold_layer_, 100 * dead, dead};
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process*, const Record& record,
                                  const format::TensorRow& row) override {
    const auto shape = ShapeOf(row.shape);
    const std::size_t limit = shape ? ElementsToRead(*shape) : 0;
    const auto values = limit > 0 ? Read(record, limit) : std::nullopt;
    if (!values) return std::nullopt;
    const bool below = std::any_of(values->begin(), values->end(),
                                   [](double value) { return value < 0 || std::isnan(value); });
    if (below) return std::nullopt;
    Layer& layer = Known(tensor);
    if (!layer.named) {
      const bool zeros = std::find(values->begin(), values->end(), 0.0) != values->end();
      if (!zeros || IsSoftmax(*values, *shape)) return std::nullopt;
    }
    layer.activity.Add(*values, *shape, HasChannelsLast(tensor.name),
                       [](double value) { return value > 0; });
    return VerdictOf(&layer, layer.activity.Take(least_ > 0 ? 1 / least_ : 1, least_));
  }

  std::optional<Verdict> OnLast(const Tensor& tensor) override {
    Layer& layer = Known(tensor);
    return VerdictOf(&layer, layer.activity.Rest(least_));
  }
  bool JudgesShortRuns() const override { return true; }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const std::size_t judged = Judged(process);
    const Tensor& worst = Largest(ill);
    incident->severity =
        ill.size() * 2 >= judged || worst.value >= 99.9 ? Severity::kHigh : Severity::kMedium;
    incident->message = fmt::format("{} of {} ReLU layers are mostly dead", ill.size(), judged);
    const Layer& layer = Known(worst);
    if (worst.by_values) {
      incident->cause = fmt::format(
          "{} % of the {} units of {} are above zero in less than {} % of {} samples, in {} "
          "verdicts in a row{}: no gradient passes through them.",
          Plain(worst.value), layer.units, worst.name, Figure(100 * least_), layer.samples,
          worst.bad_in_row, Others(ill));
      (*evidence)["units"] = layer.units;
      (*evidence)["samples"] = layer.samples;
    } else {
      incident->cause = fmt::format(
          "So many outputs of {} are zero, in {} captures in a row, that at least {} % of them are "
          "dead{}: no gradient passes through them.",
          worst.name, worst.bad_in_row, Plain(worst.value), Others(ill));
    }
    const bool from_start = worst.since.step <= worst.first_step;
    incident->advice =
        from_start ? fmt::format(
                         "They were dead from the first capture on: look at the bias and the "
                         "initialization of the layer before {}, and at the scale of its inputs; "
                         "Kaiming initialization with a bias of zero, or LeakyReLU.",
                         worst.name)
                   : fmt::format(
                         "They died about step {}: lower the learning rate or clip gradients "
                         "before that step, or use LeakyReLU or GELU.",
                         worst.since.step);
    incident->confidence = worst.by_values ? 0.95 : 0.85;
    (*evidence)["threshold_layer"] = threshold_layer_;
    (*evidence)["worst"] = worst.name;
  }

 private:
  struct Layer {
    bool known = false;
    bool named = false;  ///< By tensor_regex.
    UnitActivity activity;
    std::size_t units = 0;
    std::uint64_t samples = 0;
  };

  std::optional<Verdict> VerdictOf(Layer* layer,
                                   const std::optional<UnitActivity::Counted>& counted) const {
    if (!counted) return std::nullopt;
    layer->units = counted->units;
    layer->samples = counted->samples;
    const double dead = counted->share();
    return Verdict{100 * dead > threshold_layer_, 100 * dead, dead};
  }

  Layer& Known(const Tensor& tensor) {
    Layer& layer = Beside(&layers_, tensor);
    if (!layer.known) {
      layer.known = true;
      layer.named = pattern_.Matches(tensor.name);
    }
    return layer;
  }

  static std::string Others(const std::vector<const Tensor*>& ill) {
    return MoreLikeIt(ill.size());
  }

  const TensorPattern pattern_;
  const bool by_behaviour_;
  const double least_;
  const double threshold_layer_;
  std::vector<Layer> layers_;  ///< By id of the tensor.
};

}  // namespace

const RuleDesc kDeadReluDesc{
    .name = "DeadRelu",
    .summary = "Most units of a ReLU layer give zero whatever the sample.",
    .formula =
        "A unit (a feature, a channel) is active in a sample where one of its outputs is above "
        "zero, and dead where it is active in less than threshold_inactivity % of the samples. "
        "Counted from the values of the outputs, over captures until there were 100 / "
        "threshold_inactivity samples (at most 32 captures). A layer is dead where more than "
        "threshold_layer % of its units are. Where values were not taken, the share of outputs "
        "above zero gives the least share of dead ones that there must be, each place of a channel "
        "by itself: 1 − share / (threshold_inactivity / 100). ReLU layers are those that "
        "tensor_regex names (relu_output also as relu.output) and, with the default, activations "
        "that have zeros, nothing below zero and are no softmax. Ill after patience verdicts in a "
        "row, well after two good ones; over where no layer is ill or the process ends. High where "
        "half of the layers are ill, or one wholly; else medium. Cost = time of the steps, less "
        "waits for data, × the share of the judged outputs whose units are dead, on the assumption "
        "that what dead units cost is lost.",
    .how_to_fix =
        "Look at the bias and the initialization before the layer (Kaiming, bias zero), lower the "
        "learning rate or warm it up, normalize the inputs; LeakyReLU, GELU or SiLU cannot die.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = false,
    .example =
        "`nn.init.constant_(layer.bias, -10)` before an `nn.ReLU()`: its output is zero for every "
        "sample, and so is the gradient of all that lies before it.",
    .standing = {.theme = Theme::kLayers, .order = 1},
};

std::unique_ptr<Rule> MakeDeadRelu(const Parameters& parameters) {
  return std::make_unique<DeadRelu>(parameters);
}

}  // namespace telltale::rules::dead_relu
