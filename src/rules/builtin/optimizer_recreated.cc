// SPDX-License-Identifier: Apache-2.0
// OptimizerRecreated: a new optimizer is made for each step, so that its averages are lost each
// time. Reads the events `optimizer`, of which each optimizer gives one.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::optimizer_recreated {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_optimizers", 50, "optimizers", "Fewer than this say nothing."},
    {"steps_each", 1.5, "steps", "Steps that each of them makes, at most."},
};

struct Made {
  std::int64_t count = 0;
  std::int64_t first_step = 0;
  std::int64_t first_ns = 0;
  std::int64_t steps_before = 0;  ///< Steps that the process had made before the first.
};

struct Process : LoopProcess {
  std::map<std::string, Made> made;  ///< By class.
};

class OptimizerRecreated final : public LoopRule<Process> {
 public:
  explicit OptimizerRecreated(const Parameters& p)
      : min_(std::max<std::int64_t>(3, p.GetInt("min_optimizers"))),
        steps_each_(p.Get("steps_each")) {}

 protected:
  std::string Lacks() const override { return "no optimizer was recorded"; }
  bool Reads(std::string_view kind) const override { return kind == "optimizer"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    SeesData();
    Made& made = process->made[TextIn(data, "class")];
    if (made.count++ > 0) return;
    made.first_step = event.step;
    made.first_ns = event.time_ns;
    made.steps_before = process->steps;
  }

  void OnStep(const format::StepRow&, Process* process) override {
    for (const auto& [name, made] : process->made) {
      if (made.count < min_) continue;
      const std::int64_t steps = process->steps - made.steps_before;
      if (static_cast<double>(steps) > steps_each_ * static_cast<double>(made.count)) {
        TakeBack(process, name);
        continue;
      }
      if (!IsSaid(*process, name) || process->steps % kSayEvery == 0) Tell(name, made, process);
    }
  }

 private:
  static constexpr std::int64_t kSayEvery = 50;

  void Tell(const std::string& name, const Made& made, Process* process) {
    const std::int64_t steps = process->steps - made.steps_before;
    // Plain SGD has nothing to lose.
    Incident incident =
        BeginAt(made.first_step, made.first_ns, name == "SGD" ? Severity::kLow : Severity::kHigh);
    incident.message = fmt::format("A new {} is made in each step: {} optimizers in {} steps", name,
                                   made.count, steps);
    incident.cause = fmt::format(
        "What {} keeps from step to step (moments, step counter) begins anew each time, so every "
        "step is a first step.",
        name);
    incident.advice =
        "Make the optimizer once, before the loop, and pass it to the function that makes a step.";
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["optimizer"] = name;
    evidence["optimizers"] = made.count;
    evidence["steps"] = steps;
    incident.evidence = JsonText(evidence);
    Say(process, name, std::move(incident));
  }

  const std::int64_t min_;
  const double steps_each_;
};

}  // namespace

const RuleDesc kOptimizerRecreatedDesc{
    .name = "OptimizerRecreated",
    .summary = "A new optimizer is made in each step, and forgets what it has learned.",
    .formula =
        "Events `optimizer`, one for each optimizer that steps. At least min_optimizers of one "
        "class, which made at most steps_each steps each: high; low of SGD, which without momentum "
        "has nothing to forget. A new optimizer for each task, fold or image makes more steps. "
        "Over where they make more.",
    .how_to_fix = "Make the optimizer once, before the loop.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "def train_step(x, y): optimizer = Adam(model.parameters()); ...",
    .standing = {.theme = Theme::kLearning, .order = 1},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeOptimizerRecreated(const Parameters& parameters) {
  return std::make_unique<OptimizerRecreated>(parameters);
}

}  // namespace telltale::rules::optimizer_recreated
