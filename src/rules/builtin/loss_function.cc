// SPDX-License-Identifier: Apache-2.0
// LossFunction: the loss is given what it is not made for: probabilities where it expects scores,
// an output and a target that are broadcast against each other, targets outside of its range.
// Reads the events `loss.function` of the adapter for PyTorch.
//
// log_softmax twice is log_softmax once: no defect. An output (N, M) against targets (N, 1), or a
// table of pairs that is made with dimensions of 1 on both sides, is broadcast on purpose.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/loop_rule.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::loss_function {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_negative", 20, "steps", "Losses below 0 in a row before a loss that cannot be is told."},
};

using Lengths = std::vector<std::size_t>;

struct Process : LoopProcess {
  std::set<std::string> functions;  ///< Of all losses that were told.
  bool plain = true;                ///< Each is the whole loss, with the factor 1.
  std::int64_t negative = 0;        ///< Losses below 0 in a row up to now.
  std::int64_t negative_step = -1;
  std::int64_t negative_ns = 0;
  double newest = 0;        ///< Of these losses.
  std::int64_t say_at = 0;  ///< Of `negative`: when figures are said again.
};

std::string Number(double value) { return fmt::format("{:.3g}", value); }

/// False where it is no list of lengths.
bool LengthsIn(const nlohmann::json& data, const char* name, Lengths* lengths) {
  const auto found = data.find(name);
  if (found == data.end() || !found->is_array()) return false;
  for (const nlohmann::json& length : *found) {
    if (!length.is_number_unsigned()) return false;
    lengths->push_back(length.get<std::size_t>());
  }
  return true;
}

/// "(64, 1)".
std::string Text(const Lengths& lengths) {
  std::string text = "(";
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", lengths[i]);
  }
  return text + (lengths.size() == 1 ? ",)" : ")");
}

/// What both become together; empty where they cannot.
Lengths Broadcast(const Lengths& a, const Lengths& b) {
  Lengths out(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t of_a = i < a.size() ? a[a.size() - 1 - i] : 1;
    const std::size_t of_b = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (of_a != of_b && of_a != 1 && of_b != 1) return {};
    out[out.size() - 1 - i] = std::max(of_a, of_b);
  }
  return out;
}

/// What the function is called in torch.
std::string NameOf(std::string_view function) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"cross_entropy", "CrossEntropyLoss"},
      {"nll", "NLLLoss"},
      {"mse", "MSELoss"},
      {"l1", "L1Loss"},
      {"smooth_l1", "SmoothL1Loss"},
      {"huber", "HuberLoss"},
      {"bce", "BCELoss"},
      {"bce_with_logits", "BCEWithLogitsLoss"}};
  for (const auto& [name, torch] : kNames) {
    if (name == function) return std::string(torch);
  }
  return std::string(function);
}

class LossFunction final : public LoopRule<Process> {
 public:
  explicit LossFunction(const Parameters& p)
      : min_negative_(std::max<std::int64_t>(2, p.GetInt("min_negative"))) {}

  bool Wants(const Series& series) override {
    return series.table != format::TableId::kScalars ||
           (series.mode == "TRAIN" && series.name == "loss");
  }

 protected:
  std::string Lacks() const override { return "no loss function was recognized"; }
  bool Reads(std::string_view kind) const override { return kind == "loss.function"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    SeesData();
    const std::string function = TextIn(data, "function");
    process->functions.insert(function);
    process->plain = process->plain && FlagIn(data, "alone") && !FlagIn(data, "scaled");
    Twice(event, data, function, process);
    Shapes(event, data, function, process);
  }

  void OnScalar(const format::ScalarRow& row, Process* process) override {
    if (!(row.value < 0)) {
      process->negative = 0;
      return;
    }
    if (process->negative++ == 0) {
      process->negative_step = row.step;
      process->negative_ns = row.time_ns;
    }
    process->newest = row.value;
    if (process->negative < min_negative_) return;
    if (IsSaid(*process, "negative") && process->negative < process->say_at) return;
    process->say_at = 2 * process->negative;
    Negative(process);
  }

  void OnExit(Process* process) override {
    if (IsSaid(*process, "negative") && process->negative >= min_negative_) Negative(process);
  }

 private:
  void Twice(const format::EventRow& event, const nlohmann::json& data, const std::string& function,
             Process* process) {
    const std::string from = TextIn(data, "input_from");
    Incident incident = BeginAt(event.step, event.time_ns, Severity::kHigh);
    if (function == "cross_entropy" && from == "softmax") {
      incident.message =
          "The model's outputs go through softmax, and CrossEntropyLoss applies softmax again";
      incident.cause = fmt::format(
          "CrossEntropyLoss expects raw scores (logits); after two softmax the classes differ by "
          "at most 1 and the gradients are small: the loss cannot fall below {}.",
          FloorOf(NumberIn(data, "classes")));
      incident.advice =
          "Remove the softmax from the end of the model, and apply it only where probabilities "
          "are shown; or take its log and use NLLLoss.";
    } else if (function == "bce_with_logits" && from == "sigmoid") {
      incident.message =
          "The model's outputs go through sigmoid, and BCEWithLogitsLoss applies sigmoid again";
      incident.cause =
          "BCEWithLogitsLoss expects raw scores (logits); after two sigmoid the probability lies "
          "between 0.5 and 0.73 whatever the model says.";
      incident.advice = "Remove the sigmoid from the end of the model, or use BCELoss with it.";
    } else if (function == "nll" && from == "softmax") {
      incident.message = "NLLLoss is given probabilities; it expects their logarithms";
      incident.cause =
          "The input of NLLLoss comes from softmax. Without the logarithm the loss is minus the "
          "probability, between -1 and 0.";
      incident.advice =
          "Use log_softmax in place of softmax, or CrossEntropyLoss with the raw scores.";
    } else {
      return;
    }
    incident.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["function"] = function;
    evidence["input_from"] = from;
    if (const double classes = NumberIn(data, "classes"); classes > 0) {
      evidence["classes"] = classes;
    }
    evidence[kExplains] = {"PoorWeightInitialization", "VanishingGradient", "WeightUpdateRatio"};
    incident.evidence = JsonText(evidence);
    if (!IsSaid(*process, function)) Say(process, function, std::move(incident));
  }

  /// The least that two softmax before the logarithm can give, of so many classes.
  static std::string FloorOf(double classes) {
    if (classes < 2) return "about 0.3";
    return Number(std::log(std::exp(1.0) + classes - 1) - 1);
  }

  void Shapes(const format::EventRow& event, const nlohmann::json& data,
              const std::string& function, Process* process) {
    if (function != "mse" && function != "l1" && function != "smooth_l1" && function != "huber") {
      return;
    }
    Lengths input, target;
    if (!LengthsIn(data, "input_shape", &input) || !LengthsIn(data, "target_shape", &target)) {
      return;
    }
    const Lengths both = Broadcast(input, target);
    // Of as many dimensions both ways is a table of pairs, which somebody has made.
    if (input.size() == target.size() || both.empty() || both == input || both == target) return;
    const std::string about = function + " shapes";
    if (IsSaid(*process, about)) return;
    Incident incident = BeginAt(event.step, event.time_ns, Severity::kHigh);
    incident.message = fmt::format("Output {} and target {} are broadcast to {} in {}", Text(input),
                                   Text(target), Text(both), NameOf(function));
    incident.cause = fmt::format(
        "Their shapes differ in a dimension of size 1, so each output is compared with the targets "
        "of all samples: the model learns the mean of the targets. {} warns of it once.",
        NameOf(function));
    const bool column = input.size() > target.size();
    incident.advice = fmt::format("Give both the same shape: {} or target.view_as(output).",
                                  column ? "output.squeeze(-1)" : "output.unsqueeze(-1)");
    incident.confidence = 0.97;
    nlohmann::ordered_json evidence;
    evidence["function"] = function;
    evidence["input_shape"] = input;
    evidence["target_shape"] = target;
    evidence["broadcast_shape"] = both;
    incident.evidence = JsonText(evidence);
    Say(process, about, std::move(incident));
  }

  /// A loss below 0 that no targets in its range give.
  void Negative(Process* process) {
    if (process->functions.size() != 1 || !process->plain) return;
    const std::string& function = *process->functions.begin();
    const bool binary = function == "bce" || function == "bce_with_logits";
    // Said already, of another kind.
    if ((!binary && function != "nll") || IsSaid(*process, function)) return;
    Incident incident = BeginAt(process->negative_step, process->negative_ns, Severity::kHigh);
    const std::string name = NameOf(function);
    if (binary) {
      incident.message =
          fmt::format("The loss is negative ({}): targets of {} lie outside of 0 to 1",
                      Number(process->newest), name);
      incident.cause = fmt::format(
          "{} of targets between 0 and 1 is never below 0; it was so in {} steps in a row since "
          "step {}. Targets of -1 and 1, or of 0 and 255, reward ever larger outputs without end.",
          name, process->negative, process->negative_step);
      incident.advice =
          "Bring the targets to 0 and 1 (labels of -1 and 1: (y + 1) / 2; masks of 0 and 255: "
          "/ 255), and keep Normalize away from them.";
    } else {
      incident.message =
          fmt::format("The loss is negative ({}): NLLLoss is given no logarithms of probabilities",
                      Number(process->newest));
      incident.cause = fmt::format(
          "Of log-probabilities, which are at most 0, NLLLoss is never below 0; it was so in {} "
          "steps in a row since step {}.",
          process->negative, process->negative_step);
      incident.advice =
          "Put log_softmax before NLLLoss, or use CrossEntropyLoss with the raw scores.";
    }
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["function"] = function;
    evidence["loss"] = process->newest;
    evidence["in_row"] = process->negative;
    incident.evidence = JsonText(evidence);
    Say(process, "negative", std::move(incident));
  }

  const std::int64_t min_negative_;
};

}  // namespace

const RuleDesc kLossFunctionDesc{
    .name = "LossFunction",
    .summary = "The loss is given what it is not made for: softmax twice, other shapes or targets.",
    .formula =
        "Events `loss.function`. High: the input of cross_entropy comes from softmax, that of "
        "bce_with_logits from sigmoid, that of nll from softmax without its logarithm. High: in "
        "mse, l1, smooth_l1, huber the shapes of input and target have not the same number of "
        "dimensions and are broadcast to one that neither of them has. High: the loss is below 0 "
        "in min_negative steps in a row, where bce, bce_with_logits or nll alone is all that was "
        "told of, nothing is added and no factor stands before it: its targets are not between 0 "
        "and 1, or its input holds no log-probabilities. log_softmax before cross_entropy changes "
        "nothing and is not told. An incident lasts until its process ends.",
    .how_to_fix =
        "Give CrossEntropyLoss and BCEWithLogitsLoss the raw scores, give output and target the "
        "same shape, and bring targets into the range that the loss is made for.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kScalars),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "loss = nn.CrossEntropyLoss()(model(x).softmax(1), y)",
    .standing = {.theme = Theme::kLearning, .order = 1},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeLossFunction(const Parameters& parameters) {
  return std::make_unique<LossFunction>(parameters);
}

}  // namespace telltale::rules::loss_function
