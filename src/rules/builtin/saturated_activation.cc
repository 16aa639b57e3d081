// SPDX-License-Identifier: Apache-2.0
// SaturatedActivation: most units of a tanh or sigmoid layer stand where it has no slope.
//
// SageMaker Debugger's rule of this name reads what goes into the layer, and knows it by its name
// alone. Here what comes out is read too: the same limits, through the function. Where no values
// were taken the mean slope, which follows from mean and norm of the outputs, says what it can.
// Where no tensors were captured at all, the looks at the graphs of losses do (batch_gates.h).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rules/builtin/batch_gates.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/builtin/units.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::saturated_activation {
namespace {

constexpr char kRegex[] = ".*tanh_input|.*sigmoid_input";

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "", "Collections whose tensors are looked at, separated by commas.",
     ""},
    {"tensor_regex", 0, "",
     "Names of what goes into tanh and sigmoid layers, or comes out of them; with the default "
     "also every activation whose outputs are those of one.",
     kRegex},
    {"threshold_tanh_min", -9.4999, "", "Inputs of tanh below this have no gradient."},
    {"threshold_tanh_max", 9.4999, "", "Inputs of tanh above this have no gradient."},
    {"threshold_sigmoid_min", -23, "", "Inputs of sigmoid below this have no gradient."},
    {"threshold_sigmoid_max", 16.99999, "", "Inputs of sigmoid above this have no gradient."},
    {"threshold_inactivity", 1.0, "percent",
     "A unit is saturated where it is inside the limits in less than this share of the samples."},
    {"threshold_layer", 50.0, "percent",
     "A layer is saturated where more than this share of its units is."},
    {"patience", 2, "verdicts", "Verdicts in a row before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {
    {.collection = "activations", .take = "statistics", .asked_only = true},
    {.collection = "activations", .take = "values", .asked_only = true},
    {.collection = "{collection_names}", .take = "statistics", .asked_only = true},
    {.collection = "{collection_names}", .take = "values", .asked_only = true},
    {.collection = "", .take = "statistics", .include = "{tensor_regex}", .asked_only = true},
    {.collection = "", .take = "values", .include = "{tensor_regex}", .asked_only = true},
};

/// Without values: outputs with less than this share of the greatest slope count as saturated.
constexpr double kLittleSlope = 0.01;

bool Mentions(std::string_view name, std::string_view word) {
  return std::search(name.begin(), name.end(), word.begin(), word.end(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         }) != name.end();
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

enum class Function : std::uint8_t { kUnknown, kTanh, kSigmoid };

struct Limits {
  double min, max;
};

class SaturatedTensors final : public TensorRule {
 public:
  explicit SaturatedTensors(const Parameters& p)
      : TensorRule(p.GetInt("patience")),
        selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        outputs_too_(InsteadOfInputs(p.Text("tensor_regex"))),
        by_behaviour_(p.Text("tensor_regex") == kRegex),
        tanh_{p.Get("threshold_tanh_min"), p.Get("threshold_tanh_max")},
        sigmoid_{p.Get("threshold_sigmoid_min"), p.Get("threshold_sigmoid_max")},
        least_(p.Get("threshold_inactivity") / 100),
        threshold_layer_(p.Get("threshold_layer")) {}

 protected:
  bool Selects(const Series& series) override {
    if (selection_.Has(series) || outputs_too_.Matches(series.name)) return true;
    return by_behaviour_ && series.collection == "activations" &&
           series.name.find(".output.") == std::string::npos && !Mentions(series.name, "softmax");
  }

  void OnPlan(const format::EventRow& event) override { selection_.OnPlan(event.data); }

  std::optional<Verdict> OnStatistic(const Tensor& tensor, Process*,
                                     const format::StatisticRow& row) override {
    if (row.nan_count + row.inf_count > 0) return std::nullopt;
    const Layer& layer = Known(tensor);
    if (layer.input) {
      if (layer.function == Function::kUnknown) return std::nullopt;
      const Limits limits = layer.function == Function::kTanh ? tanh_ : sigmoid_;
      if (row.min > limits.min && row.max < limits.max) return Verdict{false, 0, 0};
      if (row.max <= limits.min || row.min >= limits.max) return Verdict{true, 100, 1};
      return std::nullopt;  // Some are outside; of which units, the statistics do not say.
    }
    const double square = row.l2 * row.l2 / static_cast<double>(row.count);
    double slope = 1;  // Mean over the outputs, as a share of the greatest there is.
    if (layer.function == Function::kSigmoid) {
      if (row.min < 0 || row.max > 1) return std::nullopt;
      slope = 4 * (row.mean - square);
    } else {
      if (row.min < -1 || row.max > 1) return std::nullopt;
      // What nothing is known of is a tanh only where it goes from end to end.
      if (layer.function == Function::kUnknown && !(row.min < -0.9 && row.max > 0.9)) {
        return std::nullopt;
      }
      slope = 1 - square;
    }
    // Those with more than little slope are at most slope / kLittleSlope of all.
    const double saturated = std::clamp(1 - slope / kLittleSlope, 0.0, 1.0);
    return Verdict{100 * saturated > threshold_layer_, 100 * saturated, saturated};
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process*, const Record& record,
                                  const format::TensorRow& row) override {
    const auto shape = ShapeOf(row.shape);
    const std::size_t limit = shape ? ElementsToRead(*shape) : 0;
    const auto values = limit > 0 ? Read(record, limit) : std::nullopt;
    if (!values) return std::nullopt;
    Layer& layer = Known(tensor);
    const auto limits = LimitsOf(layer, *values, *shape);
    if (!limits) return std::nullopt;
    layer.activity.Add(*values, *shape, HasChannelsLast(tensor.name),
                       [&](double value) { return value > limits->min && value < limits->max; });
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
    incident->severity = ill.size() * 2 >= judged ? Severity::kHigh : Severity::kMedium;
    incident->message = fmt::format("{} of {} activation layers are saturated", ill.size(), judged);
    const Layer& layer = Known(worst);
    const std::string more = MoreLikeIt(ill.size());
    if (worst.by_values) {
      incident->cause = fmt::format(
          "{} % of the {} units at {} have a slope in less than {} % of {} samples, in {} verdicts "
          "in a row{}: no gradient passes through them.",
          Plain(worst.value), layer.units, worst.name, Figure(100 * least_), layer.samples,
          worst.bad_in_row, more);
      (*evidence)["units"] = layer.units;
      (*evidence)["samples"] = layer.samples;
    } else {
      incident->cause = fmt::format(
          "At least {} % of the values at {} have less than {} % of the greatest slope, in {} "
          "captures in a row{}: hardly any gradient passes through them.",
          Plain(worst.value), worst.name, Figure(100 * kLittleSlope), worst.bad_in_row, more);
    }
    incident->advice = worst.since.step <= worst.first_step
                           ? "It is so from the first capture on: scale the inputs, initialize the "
                             "weights before the layer by Xavier's rule, or normalize between."
                           : fmt::format(
                                 "It began about step {}: lower the learning rate or put "
                                 "normalization before the activation.",
                                 worst.since.step);
    incident->confidence = worst.by_values ? 0.95 : 0.85;
    (*evidence)["threshold_layer"] = threshold_layer_;
    (*evidence)["worst"] = worst.name;
  }

 private:
  struct Layer {
    bool known = false;
    bool input = false;  ///< What goes into the function, not what comes out.
    Function function = Function::kUnknown;
    UnitActivity activity;
    std::size_t units = 0;
    std::uint64_t samples = 0;
  };

  /// The same pattern for what comes out of the layers.
  static std::string InsteadOfInputs(std::string_view regex) {
    std::string out(regex);
    for (auto at = out.find("_input"); at != std::string::npos; at = out.find("_input", at + 1)) {
      out.replace(at, 6, "_output");
    }
    return out == regex ? std::string() : out;
  }

  std::optional<Verdict> VerdictOf(Layer* layer,
                                   const std::optional<UnitActivity::Counted>& counted) const {
    if (!counted) return std::nullopt;
    layer->units = counted->units;
    layer->samples = counted->samples;
    const double saturated = counted->share();
    return Verdict{100 * saturated > threshold_layer_, 100 * saturated, saturated};
  }

  Layer& Known(const Tensor& tensor) {
    Layer& layer = Beside(&layers_, tensor);
    if (!layer.known) {
      layer.known = true;
      layer.input = tensor.collection == "inputs" || Mentions(tensor.name, "_input") ||
                    Mentions(tensor.name, ".input");
      // These are other functions.
      const bool other = Mentions(tensor.name, "logsigmoid") || Mentions(tensor.name, "shrink");
      if (!other && Mentions(tensor.name, "tanh")) layer.function = Function::kTanh;
      if (!other && Mentions(tensor.name, "sigmoid")) layer.function = Function::kSigmoid;
    }
    return layer;
  }

  /// Between which values of the tensor the function has a slope.
  std::optional<Limits> LimitsOf(const Layer& layer, std::span<const double> values,
                                 const Shape& shape) const {
    if (values.empty()) return std::nullopt;
    Function function = layer.function;
    if (layer.input) {
      if (function == Function::kUnknown) return std::nullopt;
      return function == Function::kTanh ? tanh_ : sigmoid_;
    }
    double least = values.front();
    double most = values.front();
    bool zeros = false;
    for (const double value : values) {
      if (std::isnan(value)) return std::nullopt;
      least = std::min(least, value);
      most = std::max(most, value);
      zeros = zeros || value == 0;
    }
    if (least < -1 || most > 1) return std::nullopt;
    if (function == Function::kUnknown) {
      // Zeros and nothing below are a ReLU's or a mask's.
      if (least >= 0 && (zeros || IsSoftmax(values, shape))) return std::nullopt;
      function = least < 0 ? Function::kTanh : Function::kSigmoid;
    }
    if (function == Function::kTanh) return Limits{std::tanh(tanh_.min), std::tanh(tanh_.max)};
    return Limits{Sigmoid(sigmoid_.min), Sigmoid(sigmoid_.max)};
  }

  TensorSelection selection_;
  const TensorPattern outputs_too_;
  const bool by_behaviour_;
  const Limits tanh_, sigmoid_;
  const double least_;
  const double threshold_layer_;
  std::vector<Layer> layers_;  ///< By id of the tensor.
};

/// Captured tensors say more than looks at the graph: where there are any, these alone are judged.
class SaturatedActivation final : public Rule {
 public:
  explicit SaturatedActivation(const Parameters& p)
      : tensors_(p), gates_(p.Get("threshold_layer"), p.GetInt("patience")) {}

  void Bind(const RuleContext& context) override { tensors_.Bind(context); }
  bool Wants(const Series& series) override {
    const bool wanted = tensors_.Wants(series);
    captured_ = captured_ || wanted;
    return wanted;
  }
  void OnRecord(const Record& record, Reporter* reporter) override {
    tensors_.OnRecord(record, reporter);
    if (!captured_) gates_.OnRecord(record, reporter);
  }
  void OnEnd(Reporter* reporter) override {
    tensors_.OnEnd(reporter);
    gates_.OnEnd(reporter);
  }
  bool has_data() const override { return tensors_.has_data() || gates_.has_data(); }
  std::string Missing() const override { return gates_.Missing(); }

 private:
  SaturatedTensors tensors_;
  BatchGates gates_;
  bool captured_ = false;
};

}  // namespace

const RuleDesc kSaturatedActivationDesc{
    .name = "SaturatedActivation",
    .summary = "Most units of a tanh or sigmoid layer stand where it has no slope.",
    .formula =
        "Of inputs of tanh those outside (threshold_tanh_min, threshold_tanh_max) have no "
        "gradient, of sigmoid those outside (threshold_sigmoid_min, threshold_sigmoid_max); of "
        "outputs those outside the function's values at these limits. A unit is saturated where it "
        "is inside in less than threshold_inactivity % of the samples (inside in a sample: one of "
        "its elements is), counted over captures until there were 100 / threshold_inactivity "
        "samples, at most 32 captures; a layer where more than threshold_layer % of its units are. "
        "Where values were not taken: the mean slope of the outputs (tanh: 1 − l2² / count; "
        "sigmoid: 4 × (mean − l2² / count)) gives the least share with less than 1 % of the "
        "greatest slope, 1 − slope / 0.01; inputs are saturated where all are beyond one limit. "
        "Layers are what tensor_regex (tanh_input also as tanh.input, and the outputs of the same) "
        "and collection_names name and, with the default, activations whose outputs lie within −1 "
        "and 1 (below zero somewhere: tanh) or within 0 and 1 without zeros and are no softmax "
        "(sigmoid, by values alone). Ill after patience verdicts in a row, well after two good "
        "ones; over where no layer is ill or the process ends. High where half of the layers are "
        "ill; else medium. Where no such tensor was captured, the looks of the events batch.gates: "
        "of "
        "tanh and sigmoid between layers with weights those where the same limits leave more than "
        "threshold_layer % of the outputs without slope, in patience looks in a row; medium, cost "
        "0. "
        "Else: cost = time of the steps, less waits for data, × the share of the "
        "judged elements that is saturated, on the assumption that what they cost is lost.",
    .how_to_fix =
        "Scale the inputs, initialize by Xavier's rule, normalize before the activation, lower the "
        "learning rate; or use ReLU or GELU.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = true,
    .example =
        "A tanh network on inputs in the thousands: every output is −1 or 1, whatever the weights "
        "learn.",
    .standing = {.theme = Theme::kLayers, .order = 2},
};

std::unique_ptr<Rule> MakeSaturatedActivation(const Parameters& parameters) {
  return std::make_unique<SaturatedActivation>(parameters);
}

}  // namespace telltale::rules::saturated_activation
