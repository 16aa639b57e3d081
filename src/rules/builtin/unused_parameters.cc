// SPDX-License-Identifier: Apache-2.0
// UnusedParameters: the optimizer has parameters that never receive a gradient, or only zeros.
//
// That a gradient is absent shows only once its parameter is captured again without it, so a
// capture is judged when the next one of the parameter comes. That no gradient at all comes says
// something only where each of them would be captured. What was frozen on purpose (the
// adapter counts it when the optimizer first steps) is no defect.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/tensor_rule.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::unused_parameters {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"patience", 3, "captures", "Captures without a gradient before anything is said."},
    {"share", 25, "percent", "Share of the elements from which it is medium, else low."},
};

constexpr CaptureNeed kCaptures[] = {
    {"weights", "statistics", 100},
    {"biases", "statistics", 100},
    {"gradients", "statistics", 100},
};

/// Of a word of `take` of a collection.
bool HasStatistics(const nlohmann::json& what) {
  const auto word = what.is_string() ? what.get<std::string>() : std::string();
  return word == "statistics" || word == "more" || word == "histogram";
}

/// Of the data of an event `plan`: whether statistics of every gradient are taken. Of a plan that
/// leaves some out nobody knows whether what is absent was there.
bool TakesAllGradients(std::string_view data) {
  const auto event = ParseJson(data);
  if (!event.is_object()) return true;
  const auto plan = event.find("plan");
  if (plan == event.end() || !plan->is_object()) return true;
  const auto collections = plan->find("collections");
  if (collections == plan->end() || !collections->is_object()) return true;
  for (const char* name : {"gradients", "all"}) {
    const auto found = collections->find(name);
    if (found == collections->end() || !found->is_object()) continue;
    const auto exclude = found->find("exclude");
    if (exclude != found->end() && !exclude->empty()) continue;
    const auto take = found->find("take");
    const bool taken = take == found->end() || !take->is_array() ||
                       std::any_of(take->begin(), take->end(), HasStatistics);
    const auto reductions = found->find("reductions");
    if (taken || (reductions != found->end() && !reductions->empty())) return true;
  }
  return false;
}

class UnusedParameters final : public TensorRule {
 public:
  explicit UnusedParameters(const Parameters& p)
      : TensorRule(p.GetInt("patience")), medium_share_(p.Get("share") / 100) {}

 protected:
  bool Selects(const Series& series) override {
    return series.table == format::TableId::kStatistics &&
           (series.collection == "weights" || series.collection == "biases" ||
            series.collection == "gradients");
  }

  std::optional<Verdict> OnStatistic(const Tensor& tensor, Process* process,
                                     const format::StatisticRow& row) override {
    if (tensor.is_gradient) {
      process->gradient_step = std::max(process->gradient_step, row.step);
      Gradient& gradient = Beside(&gradients_, tensor);
      gradient.came = true;
      // NaN is no zero: ExplodingTensor's.
      gradient.alive = gradient.alive || row.zero_count < row.count;
      return std::nullopt;
    }
    Parameter& parameter = Beside(&parameters_, tensor);
    const std::int64_t before = parameter.step;
    parameter.step = row.step;
    if (before < 0) return std::nullopt;
    // Where no gradient at all was captured since, mostly nothing is known.
    if (process->gradient_step < 0 && WouldCome()) return Verdict{true, 0, 1};
    if (process->gradient_step < before) return std::nullopt;
    const Gradient gradient = GradientOf(tensor);
    if (!gradient.came && !all_gradients_) return std::nullopt;
    return Verdict{!gradient.alive, gradient.alive ? 1.0 : 0.0, 1};
  }

  void OnPlan(const format::EventRow& event) override {
    all_gradients_ = TakesAllGradients(event.data);
    planned_ = true;
  }

  void OnOther(const format::EventRow& event) override {
    if (event.kind == "framework") {
      const auto facts = ParseJson(event.data);
      const auto name = facts.is_object() ? facts.find("name") : facts.end();
      torch_ = facts.is_object() && name != facts.end() && name->is_string() &&
               name->get<std::string>() == "torch";
    } else if (event.kind == "capture.unavailable") {
      hidden_ = hidden_ || event.subject == "gradients";
    } else if (event.kind == "governor" || event.kind == "budget.exceeded") {
      // What it has given up does not come, whatever the training does.
      const auto facts = ParseJson(event.data);
      const auto shed = facts.is_object() ? facts.find("shed") : facts.end();
      hidden_ = hidden_ || (facts.is_object() && shed != facts.end() && !shed->empty());
    } else if (event.kind == "tensor.shard") {
      hidden_ = true;  // Of a flat parameter of several the gradients are elsewhere.
    }
  }

  void OnEvent(const format::EventRow& event, Process* process) override {
    const auto facts = ParseJson(event.data);
    if (!facts.is_object()) return;
    const auto frozen = facts.find("frozen");
    if (frozen == facts.end() || !frozen->is_number_integer()) return;
    const auto count = std::max<std::int64_t>(0, CountOf(*frozen));
    process->frozen = std::max<std::int64_t>(0, process->frozen) + count;
  }

  bool Matters(const Process& process, const std::vector<const Tensor*>& ill) override {
    const Counts counts = Count(process, ill);
    return counts.zero > 0 || counts.absent > counts.frozen;
  }

  void Describe(const Process& process, const std::vector<const Tensor*>& ill, Incident* incident,
                nlohmann::ordered_json* evidence) override {
    const Counts counts = Count(process, ill);
    const std::size_t unused = counts.zero + counts.absent - std::min(counts.absent, counts.frozen);
    // Which are the frozen ones nobody says; they are mostly the first layers. One whose gradient
    // came and was zero is none.
    const Tensor* first = process.frozen > 0 ? ill.back() : ill.front();
    for (const Tensor* tensor : ill) {
      if (counts.absent <= counts.frozen && GradientOf(*tensor).came) {
        first = tensor;
        break;
      }
    }
    const bool sure = process.frozen >= 0;
    if (process.gradient_step < 0) {
      incident->severity = Severity::kHigh;
      incident->message = "No parameter of the optimizer gets a gradient";
      incident->cause = fmt::format(
          "In {} captures none of the {} parameters had a gradient: {} and {}.", first->bad_in_row,
          ill.size(), first->name,
          ill.size() > 1 ? fmt::format("{} more", ill.size() - 1) : std::string("no other"));
      incident->advice =
          "Look whether the optimizer holds the parameters of the model that is trained: it was "
          "made before the model was made anew, moved or wrapped; and whether the loss reaches "
          "them: detach(), no_grad(), .data, a loss that is computed in NumPy.";
      incident->confidence = 0.95;
      (*evidence)["unused"] = ill.size();
      (*evidence)["zero"] = 0;
      (*evidence)[kExplainedBy] = {"OptimizerParameters"};
      (*evidence)["absent"] = ill.size();
      if (sure) (*evidence)["frozen"] = process.frozen;
      return;
    }
    incident->severity =
        process.frozen == 0 && process.share >= medium_share_ ? Severity::kMedium : Severity::kLow;
    incident->message = fmt::format("{} of {} parameters get no gradient", unused, Judged(process));
    incident->cause = fmt::format(
        "{} {} in any of {} captures{}{}.", first->name,
        GradientOf(*first).came ? "got a gradient of nothing but zeros" : "got no gradient",
        first->bad_in_row,
        unused > 1 ? fmt::format("; nor did {} more", unused - 1) : std::string(),
        !sure ? ", unless it is frozen on purpose"
        : process.frozen > 0 && counts.absent > 0
            ? fmt::format(", {} that are frozen on purpose not counted",
                          std::min(counts.absent, counts.frozen))
            : "");
    incident->advice = fmt::format(
        "Look where {} is used: a branch that is never taken, a detach(), an output that the loss "
        "does not use. If it is not needed, take it out of the model (with DistributedDataParallel "
        "it needs find_unused_parameters, which costs time).",
        first->name);
    incident->confidence = sure ? 0.9 : 0.6;
    // Gradients that came and were zero died on their way.
    if (counts.absent <= counts.frozen) {
      (*evidence)[kExplainedBy] = {"VanishingGradient", "DeadRelu"};
    }
    (*evidence)["unused"] = unused;
    (*evidence)["zero"] = counts.zero;
    (*evidence)["absent"] = counts.absent;
    if (sure) (*evidence)["frozen"] = process.frozen;
  }

 private:
  struct Gradient {
    bool came = false;
    bool alive = false;  ///< Once it was not zero.
  };
  struct Parameter {
    std::int64_t step = -1;  ///< Of its newest capture.
  };
  struct Counts {
    std::size_t zero = 0;    ///< Whose gradient came, and was always zero.
    std::size_t absent = 0;  ///< Whose gradient never came.
    std::size_t frozen = 0;  ///< On purpose.
  };

  /// Whether each gradient that there is would be captured.
  bool WouldCome() const { return torch_ && planned_ && all_gradients_ && !hidden_; }

  Gradient GradientOf(const Tensor& parameter) {
    const Tensor* gradient = GradientTensor(parameter);
    return gradient == nullptr ? Gradient() : Beside(&gradients_, *gradient);
  }

  Counts Count(const Process& process, const std::vector<const Tensor*>& ill) {
    Counts counts;
    for (const Tensor* tensor : ill) {
      ++(GradientOf(*tensor).came ? counts.zero : counts.absent);
    }
    counts.frozen = static_cast<std::size_t>(std::max<std::int64_t>(0, process.frozen));
    return counts;
  }

  const double medium_share_;
  bool all_gradients_ = true;          ///< The plan takes them.
  bool planned_ = false;               ///< There is a plan: no import of another tool's.
  bool torch_ = false;                 ///< Whose adapter captures each gradient that there is.
  bool hidden_ = false;                ///< Some do not come though they are there.
  std::vector<Gradient> gradients_;    ///< By id of the tensor.
  std::vector<Parameter> parameters_;  ///< By id of the tensor.
};

}  // namespace

const RuleDesc kUnusedParametersDesc{
    .name = "UnusedParameters",
    .summary = "The optimizer has parameters that never receive a gradient, or only zeros.",
    .formula =
        "A parameter is unused where none of its gradients was captured so far, or all their "
        "elements were zero, in patience captures of the parameter; a capture is judged when the "
        "next one comes, and only where some gradient was captured since, or none at all would be: "
        "the "
        "adapter for PyTorch captures each gradient that there is, and the plan takes all of them; "
        "where the plan leaves gradients out, or the governor has given them up, one that never "
        "came says nothing. It is used from its first gradient on "
        "that is not zero. Parameters without any gradient are no defect as far as there are as "
        "many that were frozen (requires_grad) when the optimizer stepped first. Over two captures "
        "after all but these are used, and where the process ends. High where no parameter has a "
        "gradient. Medium where it is known that "
        "none is frozen and the unused ones have at least share % of the elements; else low. Cost "
        "= time of the steps, less waits for data, × that share, on the assumption that what is "
        "not used costs what it would cost in use.",
    .how_to_fix =
        "Look for a branch that is never taken, a detach(), an output that the loss does not use; "
        "take out what is not needed, or freeze it.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kOwn,
    .by_default = true,
    .example =
        "A second head of a model whose output the loss leaves out: its weights stay what they "
        "were when it was made.",
};

std::unique_ptr<Rule> MakeUnusedParameters(const Parameters& parameters) {
  return std::make_unique<UnusedParameters>(parameters);
}

}  // namespace telltale::rules::unused_parameters
