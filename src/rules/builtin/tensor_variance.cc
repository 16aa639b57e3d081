// SPDX-License-Identifier: Apache-2.0
// TensorVariance: the variance of a tensor is beyond a limit that the user gave.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/builtin/units.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::tensor_variance {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "", "Collections whose tensors are looked at, separated by commas.",
     ""},
    {"tensor_regex", 0, "",
     "Names of tensors that are looked at too; without both, every tensor that is captured.", ""},
    {"max_threshold", 0, "", "Variance above which a tensor is reported; 0: none."},
    {"min_threshold", 0, "", "Variance below which a tensor is reported; 0: none."},
    {"patience", 2, "captures", "Captures in a row before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {
    {"{collection_names}", "statistics", 100},
    {"", "statistics", 100, "{tensor_regex}"},
};

class TensorVariance final : public TensorRule {
 public:
  explicit TensorVariance(const Parameters& p)
      : TensorRule(p.GetInt("patience"), false),
        selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        max_(p.Get("max_threshold")),
        min_(p.Get("min_threshold")) {}

 protected:
  bool Selects(const Series& series) override {
    // Without a limit there is nothing to judge.
    if (max_ <= 0 && min_ <= 0) return false;
    return selection_.empty() || selection_.Has(series);
  }

  void OnPlan(const format::EventRow& event) override { selection_.OnPlan(event.data); }

  std::optional<Verdict> OnStatistic(const Tensor&, Process*,
                                     const format::StatisticRow& row) override {
    // NaN and Inf are ExplodingTensor's; one element has no variance.
    const std::uint64_t bad = row.nan_count + row.inf_count;
    if (bad >= row.count || row.count - bad < 2) return std::nullopt;
    return Of(row.std * row.std);
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process*, const Record& record,
                                  const format::TensorRow& row) override {
    if (tensor.statistic_step >= row.step) return std::nullopt;
    const auto shape = ShapeOf(row.shape);
    if (!shape || ElementsOf(*shape) < 2 || ElementsOf(*shape) > kMostElements) {
      return std::nullopt;
    }
    const auto values = Read(record, kMostElements);
    if (!values) return std::nullopt;
    double count = 0;
    double mean = 0;
    double squares = 0;  // Of the deviations, by Welford's way.
    for (const double value : *values) {
      if (!std::isfinite(value)) continue;
      count += 1;
      const double deviation = value - mean;
      mean += deviation / count;
      squares += deviation * (value - mean);
    }
    if (count < 2) return std::nullopt;
    return Of(squares / count);
  }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const std::size_t judged = Judged(process);
    // The one furthest beyond a limit.
    const Tensor& worst = **std::max_element(
        ill.begin(), ill.end(),
        [&](const Tensor* a, const Tensor* b) { return Beyond(a->value) < Beyond(b->value); });
    const bool high = max_ > 0 && worst.value > max_;
    incident->severity = Severity::kMedium;
    incident->message = fmt::format("{} of {} tensors vary out of limits", ill.size(), judged);
    incident->cause = fmt::format(
        "The variance of {} is {}, {} {}, in {} captures in a row from step {} on; it was {} in "
        "the first.",
        worst.name, Figure(worst.value), high ? "above" : "below", Figure(high ? max_ : min_),
        worst.bad_in_row, worst.since.step, Figure(worst.first_value));
    incident->advice =
        high ? "Look at the initialization and the scale of what goes in; normalize, or lower the "
               "learning rate."
             : "Look at the initialization, and whether what goes in differs from sample to sample "
               "at all.";
    incident->confidence = 0.95;
    if (max_ > 0) (*evidence)["max_threshold"] = max_;
    if (min_ > 0) (*evidence)["min_threshold"] = min_;
    (*evidence)["worst"] = worst.name;
  }

 private:
  static constexpr std::size_t kMostElements = std::size_t{4} << 20U;

  Verdict Of(double variance) const {
    return {(max_ > 0 && variance > max_) || (min_ > 0 && variance < min_), variance, 1};
  }
  /// How far a variance is beyond the nearer limit, as a factor.
  double Beyond(double variance) const {
    if (max_ > 0 && variance > max_) return variance / max_;
    return min_ > 0 ? min_ / std::max(variance, 1e-300) : 0;
  }

  TensorSelection selection_;
  const double max_, min_;
};

}  // namespace

const RuleDesc kTensorVarianceDesc{
    .name = "TensorVariance",
    .summary = "The variance of a tensor is beyond a limit that you gave.",
    .formula =
        "variance = std² over the finite elements (population), of each tensor that "
        "collection_names or tensor_regex names, or of all where neither is given, with at least "
        "two elements. Bad where variance > max_threshold, or variance < min_threshold; a "
        "threshold of 0 is none, and without either nothing is judged. A tensor is ill after "
        "patience captures in a row and well after two that are not so; over where none is ill or "
        "the process ends. Medium. Cost: 0, it does not follow from a variance.",
    .how_to_fix =
        "Too large: look at the initialization and at the scale of the inputs, normalize, lower "
        "the learning rate. Too small: look whether what goes in differs from sample to sample.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = false,
    .example =
        "`--rule TensorVariance:collection_names=weights,max_threshold=10` on a layer initialized "
        "by `nn.init.normal_(layer.weight, std=5)`.",
};

std::unique_ptr<Rule> MakeTensorVariance(const Parameters& parameters) {
  return std::make_unique<TensorVariance>(parameters);
}

}  // namespace telltale::rules::tensor_variance
