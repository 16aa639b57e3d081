// SPDX-License-Identifier: Apache-2.0
// UnchangedTensor: a tensor is the same in each capture.
//
// With values this is numpy.allclose, as in SageMaker Debugger's rule of this name. Statistics
// alone cannot say close: a large tensor that moves little has nearly the same ones. They have to
// be the same to the last digit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/builtin/units.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::unchanged_tensor {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "",
     "Collections whose tensors are looked at, separated by commas; without this and tensor_regex:"
     " weights.",
     ""},
    {"tensor_regex", 0, "", "Names of tensors that are looked at too.", ""},
    {"num_steps", 3, "captures", "Captures in a row that have to be the same."},
    {"rtol", 1e-5, "", "Relative tolerance of two elements."},
    {"atol", 1e-8, "", "Absolute tolerance of two elements."},
    {"equal_nan", 0, "", "1: NaN is the same as NaN."},
};

constexpr CaptureNeed kCaptures[] = {
    {"{collection_names}", "statistics", 100},
    {"", "statistics", 100, "{tensor_regex}"},
};

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class UnchangedTensor final : public TensorRule {
 public:
  explicit UnchangedTensor(const Parameters& p)
      : TensorRule(p.GetInt("num_steps") - 1),
        selection_(p.Text("collection_names").empty() && p.Text("tensor_regex").empty()
                       ? "weights"
                       : p.Text("collection_names"),
                   p.Text("tensor_regex")),
        rtol_(p.Get("rtol")),
        atol_(p.Get("atol")),
        equal_nan_(p.Get("equal_nan") != 0) {}

 protected:
  bool Selects(const Series& series) override { return selection_.Has(series); }
  void OnPlan(const format::EventRow& event) override { selection_.OnPlan(event.data); }

  std::optional<Verdict> OnStatistic(const Tensor& tensor, Process*,
                                     const format::StatisticRow& row) override {
    Kept& kept = Beside(&kept_, tensor);
    const Statistics now{row.count, row.nan_count, row.inf_count, row.zero_count, row.min,
                         row.max,   row.mean,      row.std,       row.l1,         row.l2};
    if (!kept.statistics) {
      kept.statistics = now;
      return std::nullopt;
    }
    Statistics& before = *kept.statistics;
    const bool same = now.count == before.count && now.nan == before.nan && now.inf == before.inf &&
                      now.zero == before.zero && Same(now.min, before.min) &&
                      Same(now.max, before.max) && Same(now.mean, before.mean) &&
                      Same(now.std, before.std) && Same(now.l1, before.l1) &&
                      Same(now.l2, before.l2);
    const double change = std::abs(now.l2 - before.l2);
    before = now;
    return Verdict{same && (equal_nan_ || now.nan == 0), change, 1};
  }

  std::optional<Verdict> OnValues(const Tensor& tensor, Process*, const Record& record,
                                  const format::TensorRow& row) override {
    Kept& kept = Beside(&kept_, tensor);
    auto values = Small(row) ? Read(record, kMostOfOne) : std::nullopt;
    if (!values && row.digest.empty()) return std::nullopt;  // Only the shape was taken.
    const bool first = !std::exchange(kept.came, true);
    const std::string before = std::exchange(kept.digest, std::string(row.digest));
    const bool identical = !before.empty() && before == kept.digest;
    const std::vector<double> old = Keep(&kept, values);
    if (first) return std::nullopt;
    // The same bytes are the same, unless NaN is to differ from itself.
    if (identical) {
      const bool nan = !equal_nan_ && values &&
                       std::any_of(values->begin(), values->end(),
                                   [](double value) { return std::isnan(value); });
      return Verdict{!nan, 0, 1};
    }
    if (!values || old.size() != values->size()) {
      return Verdict{false, std::numeric_limits<double>::infinity(), 1};
    }
    return Compare(old, *values);
  }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const std::size_t judged = Judged(process);
    const Tensor& first = *ill.front();
    incident->severity = ill.size() * 2 >= judged ? Severity::kHigh : Severity::kMedium;
    incident->message = fmt::format("{} of {} tensors do not change", ill.size(), judged);
    incident->cause = fmt::format(
        "{} was the same in {} captures in a row{}{}.", first.name, first.bad_in_row + 1,
        first.by_values ? "" : ", all its statistics to the last digit",
        ill.size() > 1 ? fmt::format("; so were {} more", ill.size() - 1) : std::string());
    incident->advice = fmt::format(
        "Look whether {} is meant to be frozen (requires_grad, trainable); if not, whether the loss"
        " reaches it (detach(), no_grad()), whether the optimizer has it, and the learning rate of "
        "its group.",
        first.name);
    incident->confidence = first.by_values ? 0.95 : 0.9;
    (*evidence)["num_steps"] = first.bad_in_row + 1;
  }

 private:
  static constexpr std::size_t kMostOfOne = std::size_t{1} << 18U;
  static constexpr std::size_t kMostOfAll = std::size_t{1} << 22U;

  struct Statistics {
    std::uint64_t count, nan, inf, zero;
    double min, max, mean, std, l1, l2;
  };

  struct Kept {
    std::optional<Statistics> statistics;
    bool came = false;
    std::string digest;
    std::vector<double> values;
  };

  static bool Small(const format::TensorRow& row) {
    const auto shape = ShapeOf(row.shape);
    return shape && ElementsOf(*shape) > 0 && ElementsOf(*shape) <= kMostOfOne;
  }

  /// Keeps the values for the next capture, while there is room; gives those kept before.
  std::vector<double> Keep(Kept* kept, const std::optional<std::vector<double>>& values) {
    kept_elements_ -= kept->values.size();
    std::vector<double> before = std::exchange(kept->values, {});
    if (values && kept_elements_ + values->size() <= kMostOfAll) {
      kept->values = *values;
      kept_elements_ += values->size();
    }
    return before;
  }

  /// As numpy.allclose(before, now).
  Verdict Compare(const std::vector<double>& before, const std::vector<double>& now) const {
    double largest = 0;
    bool close = true;
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (before[i] == now[i]) continue;  // Infinities too.
      if (std::isnan(before[i]) && std::isnan(now[i]) && equal_nan_) continue;
      const double difference = std::abs(before[i] - now[i]);
      close = close && difference <= atol_ + rtol_ * std::abs(now[i]) && !std::isinf(now[i]);
      if (!(difference <= largest)) largest = difference;
    }
    return {close, largest, 1};
  }

  TensorSelection selection_;
  const double rtol_, atol_;
  const bool equal_nan_;
  std::vector<Kept> kept_;  ///< By id of the tensor.
  std::size_t kept_elements_ = 0;
};

}  // namespace

const RuleDesc kUnchangedTensorDesc{
    .name = "UnchangedTensor",
    .summary = "A tensor is the same in each capture.",
    .formula =
        "Two captures are the same where |a − b| ≤ atol + rtol × |b| for every element "
        "(numpy.allclose; NaN equals NaN with equal_nan alone); of tensors of more than 262,144 "
        "elements, and of all beyond 4 Mi elements together, where their bytes are. Where values "
        "were not taken: where count, least, greatest, mean, standard deviation, norms and numbers "
        "of zeros, NaN and Inf are the same to the last digit. A tensor is ill after num_steps "
        "captures that are the same, one after the other, and well after two that changed; over "
        "where none is ill or the process ends. Looked at are the tensors that collection_names or "
        "tensor_regex name, the weights where neither is given. The number found is the largest "
        "change of an element (of statistics: of the norm). High where half of the tensors are "
        "ill; else medium. Cost = time of the steps, less waits for data, × the share of the "
        "judged elements that do not change, on the assumption that they should.",
    .how_to_fix =
        "Look whether it is meant to be frozen; if not, whether the loss reaches it, whether the "
        "optimizer has it, and at the learning rate of its parameter group.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = false,
    .example =
        "`layer.requires_grad_(False)` that was left over from an earlier fine-tuning: the "
        "optimizer has the layer, and never changes it.",
    .standing = {.theme = Theme::kLayers, .order = 5},
};

std::unique_ptr<Rule> MakeUnchangedTensor(const Parameters& parameters) {
  return std::make_unique<UnchangedTensor>(parameters);
}

}  // namespace telltale::rules::unchanged_tensor
