// SPDX-License-Identifier: Apache-2.0
// TrainingMode: the model is trained while it is in eval mode, so that its Dropout and BatchNorm
// modules are off. Reads the events `loop.mode` of the adapter for PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::training_mode {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_steps", 48, "steps", "Steps in eval mode before anything is said."},
};

/// What is known of a model.
struct Mode {
  bool trained_before = false;  ///< It was seen in train mode.
  bool off = false;             ///< It is in eval mode, with modules that should not be.
  std::int64_t since_step = 0;
  std::int64_t since_ns = 0;
  std::string modules;  ///< "Dropout (1) and BatchNorm1d (1)".
  std::vector<std::string> names;
  double count = 0;
  bool dropout = false;
};

struct Process : LoopProcess {
  std::map<std::string, Mode> modes;  ///< By class of the model.
};

/// Sum of the counts by class.
double CountOf(const nlohmann::json& data, const char* name) {
  const auto found = data.find(name);
  if (found == data.end() || !found->is_object()) return 0;
  double sum = 0;
  for (const nlohmann::json& count : *found) sum += count.is_number() ? count.get<double>() : 0;
  return sum;
}

class TrainingMode final : public LoopRule<Process> {
 public:
  explicit TrainingMode(const Parameters& p) : min_steps_(p.GetInt("min_steps")) {}

 protected:
  std::string Lacks() const override {
    return "whether the model is in train or eval mode was not recorded";
  }
  bool Reads(std::string_view kind) const override { return kind == "loop.mode"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    SeesData();
    const std::string model = TextIn(data, "model");
    Mode& mode = process->modes[model];
    const bool training = FlagIn(data, "training", true);
    mode.count = CountOf(data, "inactive");
    // One that is put into eval mode in part, with its root in train mode, is so on purpose.
    const bool off = !training && mode.count > 0 && CountOf(data, "active") == 0;
    if (!off) {
      mode.off = false;
      mode.trained_before = mode.trained_before || training;
      TakeBack(process, model);
      return;
    }
    if (!mode.off) {
      mode.since_step = IntegerIn(data, "step", event.step);
      mode.since_ns = event.time_ns;
    }
    mode.off = true;
    mode.names = TextsIn(data, "inactive_names");
    mode.modules.clear();
    mode.dropout = false;
    std::vector<std::string> classes;
    for (const auto& [name, count] : data.find("inactive")->items()) {
      classes.push_back(fmt::format("{} ({})", name, count.dump()));
      mode.dropout = mode.dropout || name.find("ropout") != std::string::npos;
    }
    mode.modules = Listed(classes, classes.size(), classes.size());
  }

  void OnStep(const format::StepRow&, Process* process) override {
    for (const auto& [model, mode] : process->modes) {
      if (!mode.off || IsSaid(*process, model)) continue;
      if (process->last_step - mode.since_step + 1 < min_steps_) continue;
      Incident incident = BeginAt(mode.since_step, mode.since_ns, SeverityOf(mode));
      incident.message = fmt::format("{} trains in eval mode since step {}: {} off", model,
                                     mode.since_step, mode.modules);
      incident.cause = fmt::format(
          "The optimizer goes on while the model is in eval mode{}: Dropout drops nothing and "
          "BatchNorm normalises by its old averages in {} modules ({}).",
          mode.trained_before
              ? ", to which model.eval() set it, for an evaluation mostly; model.train() was not "
                "called again"
              : " from its first step on",
          mode.count, Listed(mode.names, ToCount(mode.count)));
      incident.advice =
          "Call model.train() at the begin of each epoch and behind each evaluation. Where it is "
          "meant to be so, put only those modules into eval mode and leave the model in train "
          "mode.";
      incident.confidence = mode.trained_before ? 0.95 : 0.7;
      nlohmann::ordered_json evidence;
      evidence["model"] = model;
      evidence["since_step"] = mode.since_step;
      evidence["modules"] = mode.count;
      evidence["names"] = mode.names;
      evidence["in_train_mode_before"] = mode.trained_before;
      incident.evidence = JsonText(evidence);
      Say(process, model, std::move(incident));
    }
  }

 private:
  /// From the first step on it may be on purpose; BatchNorm alone is often left at its averages.
  static Severity SeverityOf(const Mode& mode) {
    if (mode.trained_before) return Severity::kHigh;
    return mode.dropout ? Severity::kMedium : Severity::kLow;
  }

  const std::int64_t min_steps_;
};

}  // namespace

const RuleDesc kTrainingModeDesc{
    .name = "TrainingMode",
    .summary = "The model is trained in eval mode: Dropout and BatchNorm are off.",
    .formula =
        "Events `loop.mode`: the root module is in eval mode, at least one Dropout or BatchNorm "
        "module of it is, and none is in train mode, for min_steps steps. High where the model was "
        "in train mode before; from its first step on medium, low where it has BatchNorm alone. A "
        "BatchNorm whose own parameters are frozen does not count, nor does a model whose root is "
        "in train mode. Over where an event says that it is in train mode again.",
    .how_to_fix = "Call model.train() at the begin of each epoch, and behind each evaluation.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "for epoch in range(9): train_epoch(model); model.eval(); evaluate(model)",
    .standing = {.theme = Theme::kLearning, .order = 1},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeTrainingMode(const Parameters& parameters) {
  return std::make_unique<TrainingMode>(parameters);
}

}  // namespace telltale::rules::training_mode
