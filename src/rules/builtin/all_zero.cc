// SPDX-License-Identifier: Apache-2.0
// AllZero: a tensor holds (nearly) nothing but zeros, capture after capture.
#include <fmt/format.h>

#include <algorithm>
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

namespace telltale::rules::all_zero {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "", "Collections whose tensors are looked at, separated by commas.",
     ""},
    {"tensor_regex", 0, "",
     "Names of tensors that are looked at too; without both, every tensor that is captured.", ""},
    {"threshold", 100, "percent", "Share of zeros from which a tensor counts as zero."},
    {"patience", 2, "captures", "Captures in a row before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {
    {"{collection_names}", "statistics", 100},
    {"", "statistics", 100, "{tensor_regex}"},
};

class AllZero final : public TensorRule {
 public:
  explicit AllZero(const Parameters& p)
      : TensorRule(p.GetInt("patience")),
        selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        threshold_(p.Get("threshold")) {}

 protected:
  bool Selects(const Series& series) override {
    return selection_.empty() || selection_.Has(series);
  }

  void OnPlan(const format::EventRow& event) override { selection_.OnPlan(event.data); }

  std::optional<Verdict> OnStatistic(const Tensor&, Process*,
                                     const format::StatisticRow& row) override {
    return Of(static_cast<double>(row.zero_count), static_cast<double>(row.count));
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process*, const Record& record,
                                  const format::TensorRow& row) override {
    // Statistics of the same capture say it without a file being read.
    if (tensor.statistic_step >= row.step) return std::nullopt;
    const auto shape = ShapeOf(row.shape);
    if (!shape || ElementsOf(*shape) == 0 || ElementsOf(*shape) > kMostElements) {
      return std::nullopt;
    }
    const auto values = Read(record, kMostElements);
    if (!values) return std::nullopt;
    const auto zeros = std::count(values->begin(), values->end(), 0.0);
    return Of(static_cast<double>(zeros), static_cast<double>(values->size()));
  }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const std::size_t judged = Judged(process);
    const Tensor& first = *ill.front();
    incident->severity = ill.size() * 2 >= judged ? Severity::kHigh : Severity::kMedium;
    incident->message = fmt::format("{} of {} tensors are all zero", ill.size(), judged);
    incident->cause = fmt::format(
        "{} % of the elements of {} were zero in {} captures in a row, from step {} on{}.",
        Figure(first.value), first.name, first.bad_in_row, first.since.step,
        ill.size() > 1 ? fmt::format("; so were {} more", ill.size() - 1) : std::string());
    incident->advice =
        first.collection == "gradients"
            ? "Look for units that never activate, a detach(), or a branch that the loss does not "
              "use."
        : first.collection == "weights" || first.collection == "biases"
            ? "Look at the initialization, and at what could set it to zero: weight decay that is "
              "too strong, pruning, a mask."
            : fmt::format("Look at what goes into {}: a mask, dead units, inputs that are empty.",
                          first.name);
    incident->confidence = 0.95;
    (*evidence)["threshold"] = threshold_;
  }

 private:
  static constexpr std::size_t kMostElements = std::size_t{4} << 20U;

  Verdict Of(double zeros, double all) const {
    const double share = 100 * zeros / all;
    return {share >= threshold_, share, share / 100};
  }

  TensorSelection selection_;
  const double threshold_;
};

}  // namespace

const RuleDesc kAllZeroDesc{
    .name = "AllZero",
    .summary = "A tensor holds nothing but zeros.",
    .formula =
        "100 × zeros / elements ≥ threshold, of each tensor that collection_names or tensor_regex "
        "names, or of all where neither is given; NaN is no zero. From statistics, else from "
        "values of up to 4 Mi elements. A tensor is ill after patience captures in a row (what "
        "begins at zero may come to life) and well after two that are not so; over where none is "
        "ill or the process ends. High where half of the tensors are ill; else medium. Cost = time "
        "of the steps, less waits for data, × the share of the judged elements that are such "
        "zeros, on the assumption that what they cost is lost.",
    .how_to_fix =
        "Gradients: look for dead units, a detach(), a branch that the loss does not use. Weights: "
        "look at the initialization, weight decay, masks. Outputs: look at what goes in.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = false,
    .example =
        "Weights set to zero by `nn.init.zeros_(layer.weight)` in two layers that follow each "
        "other: neither gets a gradient, both stay zero.",
    .standing = {.theme = Theme::kLayers, .order = 3},
};

std::unique_ptr<Rule> MakeAllZero(const Parameters& parameters) {
  return std::make_unique<AllZero>(parameters);
}

}  // namespace telltale::rules::all_zero
