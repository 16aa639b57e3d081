// SPDX-License-Identifier: Apache-2.0
// OptimizerParameters: the optimizer does not have the parameters that are trained. Its own belong
// to no model that was called, no gradient reaches them, or parameters that get a gradient are in
// no optimizer. Reads the events `optimizer.parameters` of the adapter for PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::optimizer_parameters {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_looks", 3, "looks", "Steps of an optimizer that were looked at before anything is said."},
};

/// Of one optimizer, as its event says it.
struct Facts {
  std::string optimizer;
  double own, without, used, trainable, outside, elements, frozen, looks;
  double apart;  ///< Of modules that a model has in a plain list.
};

Facts FactsOf(const nlohmann::json& data) {
  Facts facts;
  facts.optimizer = TextIn(data, "class");
  facts.own = NumberIn(data, "parameters");
  facts.without = NumberIn(data, "without_gradient");
  facts.used = NumberIn(data, "in_called_models");
  facts.trainable = NumberIn(data, "model_parameters");
  facts.outside = NumberIn(data, "outside");
  facts.elements = NumberIn(data, "outside_elements");
  facts.frozen = NumberIn(data, "frozen");
  facts.looks = NumberIn(data, "looks");
  facts.apart = NumberIn(data, "unregistered");
  return facts;
}

struct Process : LoopProcess {
  bool backward = false;  ///< It goes backward.
  bool loss = false;      ///< A loss was seen that has a graph.
};

class OptimizerParameters final : public LoopRule<Process> {
 public:
  explicit OptimizerParameters(const Parameters& p) : min_looks_(p.Get("min_looks")) {}

 protected:
  std::string Lacks() const override { return "no parameters of an optimizer were recorded"; }
  bool Reads(std::string_view kind) const override {
    return kind == "optimizer.parameters" || kind == "loss.function";
  }

  void OnStep(const format::StepRow& row, Process* process) override {
    process->backward = process->backward || row.backward_ns > 0;
  }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    if (event.kind == "loss.function") {
      process->loss = true;
      return;
    }
    SeesData();
    const Facts facts = FactsOf(data);
    // Where no model was seen nothing is known.
    const auto used = data.find("in_called_models");
    if (facts.looks < min_looks_ || facts.own <= 0 || used == data.end() || used->is_null()) return;
    Incident incident = BeginAt(0, event.time_ns, Severity::kHigh);
    const bool found = Describe(facts, data, *process, &incident);
    if (!found) {
      TakeBack(process, facts.optimizer);
      return;
    }
    nlohmann::ordered_json evidence;
    for (const char* name : {"class", "parameters", "without_gradient", "in_called_models",
                             "model_parameters", "outside", "outside_elements", "outside_names",
                             "unregistered", "unregistered_names", "frozen", "looks"}) {
      if (const auto value = data.find(name); value != data.end()) evidence[name] = *value;
    }
    incident.evidence = JsonText(evidence);
    Say(process, facts.optimizer, std::move(incident));
  }

 private:
  static bool Describe(const Facts& facts, const nlohmann::json& data, const Process& process,
                       Incident* incident) {
    const double stale = facts.own - facts.used;
    if (facts.without >= facts.own && facts.used <= 0 && facts.outside > 0) {
      incident->message = fmt::format(
          "{} updates nothing: none of its {} parameters belongs to a model that was called",
          facts.optimizer, facts.own);
      incident->cause = fmt::format(
          "None of them had a gradient in any of {} steps that were looked at; {} of the {} "
          "parameters of the models that are called had one, and no optimizer has these. The "
          "optimizer was made with the parameters of another model than the one that is trained.",
          facts.looks, facts.outside, facts.trainable);
      incident->advice =
          "Make the optimizer, optimizer = ...(model.parameters()), after the last line that "
          "makes the model anew (a reset of its weights, a copy, a wrapper, loading a checkpoint).";
      incident->confidence = 0.97;
      return true;
    }
    // Those that are frozen for now wait for their time; an optimizer that searches without
    // gradients, or computes them in its step, has no such loss.
    if (facts.without >= facts.own && facts.frozen <= 0 && facts.used > 0 && process.backward &&
        !process.loss && facts.optimizer != "LBFGS") {
      incident->message =
          fmt::format("No gradient reaches the model: none of the {} parameters of {} ever had one",
                      facts.own, facts.optimizer);
      incident->cause = fmt::format(
          "backward() and {}.step() are called, but in {} steps that were looked at no parameter "
          "had a gradient: the loss is cut off from the graph of the model, by detach(), .data, "
          ".item(), .numpy() or torch.tensor(...) between the model's output and the loss.",
          facts.optimizer, facts.looks);
      incident->advice =
          "Compute the loss with torch from the output of the model itself; requires_grad=True on "
          "a new tensor only hides the error. print(loss.grad_fn) must not be None.";
      incident->confidence = 0.95;
      return true;
    }
    if (facts.apart > 0) {
      DescribeApart(facts, TextsIn(data, "unregistered_names"), incident);
      return true;
    }
    // Of an optimizer with copies of the parameters, or with an input of the model, nothing is
    // known.
    if (facts.outside <= 0 || (facts.used <= 0 && facts.without < facts.own)) return false;
    const double share = facts.trainable > 0 ? facts.outside / facts.trainable : 0;
    const std::string outside = fmt::format(
        "{} of {} parameters that get a gradient are in no optimizer, and stay as they are: {}",
        facts.outside, facts.trainable,
        Listed(TextsIn(data, "outside_names"), ToCount(facts.outside)));
    if (stale > 0 && facts.without >= stale) {
      incident->severity = share >= 0.5 ? Severity::kHigh : Severity::kMedium;
      incident->message = fmt::format("{} of {} parameters of the model are not those that {} has",
                                      facts.outside, facts.trainable, facts.optimizer);
      incident->cause = fmt::format(
          "{}. {} parameters of {} belong to no model that was called and never had a gradient: a "
          "layer was replaced after the optimizer was made.",
          outside, stale, facts.optimizer);
      incident->advice =
          "Make the optimizer after the last change of the model, or give it the new layer with "
          "optimizer.add_param_group().";
      incident->confidence = 0.9;
      return true;
    }
    incident->severity = Severity::kLow;
    incident->message = fmt::format("{} of {} parameters get gradients that no optimizer uses",
                                    facts.outside, facts.trainable);
    incident->cause = fmt::format("{}.", outside);
    incident->advice =
        "Where they are meant to stay, freeze them with requires_grad_(False): their gradients "
        "cost time and memory. Where they are to learn, give them to the optimizer.";
    incident->confidence = 0.8;
    return true;
  }

  static void DescribeApart(const Facts& facts, const std::vector<std::string>& names,
                            Incident* incident) {
    const double all = facts.trainable + facts.apart;
    if (facts.apart < 0.5 * all) incident->severity = Severity::kMedium;
    incident->message = fmt::format(
        "{} of {} parameters are in no optimizer and never change: model.parameters() "
        "does not give them",
        facts.apart, all);
    incident->cause = fmt::format(
        "They get a gradient, but belong to modules in a plain Python list, tuple or dict of the "
        "model, which does not register them: {}.",
        Listed(names, ToCount(facts.apart)));
    incident->advice =
        "Keep these modules in nn.ModuleList or nn.ModuleDict, before the optimizer is made; then "
        "they are saved and moved with the model too.";
    incident->confidence = 0.95;
  }

  const double min_looks_;
};

}  // namespace

const RuleDesc kOptimizerParametersDesc{
    .name = "OptimizerParameters",
    .summary = "The optimizer does not have the parameters that are trained.",
    .formula =
        "Events `optimizer.parameters`, from min_looks steps of the optimizer on. High: none of "
        "its parameters belongs to a model that was called, and none ever had a gradient, but "
        "those of "
        "the model have; or none "
        "ever had one though backward was called and nothing is frozen: the loss is cut off from "
        "the model. Parameters "
        "with a gradient that no optimizer has: of modules in a plain Python list of the model, or "
        "while the optimizer has others that no model uses (a layer was replaced), medium, and "
        "high from half of the trainable parameters on; else low, since a backbone that is left "
        "out on purpose looks "
        "the same. Over where a later event says that all is well.",
    .how_to_fix =
        "Make the optimizer of the final model, keep modules in nn.ModuleList, and compute the "
        "loss with torch from the output of the model.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "optimizer = torch.optim.Adam(model.parameters()); model = make_model()",
    .standing = {.theme = Theme::kLearning, .order = 0},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeOptimizerParameters(const Parameters& parameters) {
  return std::make_unique<OptimizerParameters>(parameters);
}

}  // namespace telltale::rules::optimizer_parameters
