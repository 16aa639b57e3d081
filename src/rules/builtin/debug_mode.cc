// SPDX-License-Identifier: Apache-2.0
// DebugMode: a switch for debugging stays on while the training goes on, and makes each step
// slower. Reads the events `debug.modes` of the adapter for PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::debug_mode {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_steps", 50, "steps",
     "A switch that is on for fewer TRAIN steps in a row is not reported."},
};

struct Mode {
  std::string_view name, message, cause, advice;
  Severity severity;
};
constexpr Mode kModes[] = {
    {"anomaly", "Anomaly detection of autograd is on",
     "torch.autograd.set_detect_anomaly(True) keeps the stack of each operation of the forward "
     "pass, "
     "and looks for NaN in each result of the backward pass: steps often take twice as long.",
     "Turn it off (set_detect_anomaly(False), or remove the context manager detect_anomaly; in "
     "Lightning detect_anomaly=False). Turn it on only to find where a NaN comes from.",
     Severity::kMedium},
    {"launch_blocking", "CUDA_LAUNCH_BLOCKING is set",
     "Python waits for each CUDA kernel to end before it launches the next one, so the GPU idles "
     "between any two kernels.",
     "Unset CUDA_LAUNCH_BLOCKING; set it only to find the line that a CUDA error comes from.",
     Severity::kMedium},
    {"tracemalloc", "tracemalloc traces each allocation of Python",
     "It keeps the call stack of each allocation: Python code often takes twice as long, or more.",
     "Call tracemalloc.stop(), or unset PYTHONTRACEMALLOC, once you have seen what takes the "
     "memory.",
     Severity::kMedium},
    {"trace", "A debugger or coverage tool traces each line of Python",
     "A trace function is set (sys.settrace), as debuggers and tools that measure coverage do: "
     "Python calls it for each line.",
     "Run the training without the debugger or the coverage tool.", Severity::kLow},
};

/// Of one switch.
struct On {
  bool on = false;
  std::int64_t since_step = 0;
  std::int64_t since_ns = 0;
};

struct Process : LoopProcess {
  std::array<On, std::size(kModes)> modes;
};

class DebugMode final : public LoopRule<Process> {
 public:
  explicit DebugMode(const Parameters& p)
      : min_steps_(std::max<std::int64_t>(1, p.GetInt("min_steps"))) {}

 protected:
  std::string Lacks() const override { return "too few steps were recorded"; }
  bool Reads(std::string_view kind) const override { return kind == "debug.modes"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    const std::vector<std::string> names = TextsIn(data, "on");
    for (std::size_t i = 0; i < std::size(kModes); ++i) {
      On& mode = process->modes[i];
      const bool on = std::find(names.begin(), names.end(), kModes[i].name) != names.end();
      if (on && !mode.on) mode = {true, process->last_step + 1, event.time_ns};
      if (!on) TakeBack(process, std::string(kModes[i].name));
      mode.on = on;
    }
  }

  void OnStep(const format::StepRow&, Process* process) override {
    if (process->steps >= min_steps_) SeesData();
    for (std::size_t i = 0; i < std::size(kModes); ++i) {
      const On& mode = process->modes[i];
      const std::string about(kModes[i].name);
      const std::int64_t steps = process->last_step - mode.since_step + 1;
      if (!mode.on || steps < min_steps_ || IsSaid(*process, about)) continue;
      Incident incident = BeginAt(mode.since_step, mode.since_ns, kModes[i].severity);
      incident.message = kModes[i].message;
      incident.cause = kModes[i].cause;
      incident.advice = kModes[i].advice;
      incident.confidence = 0.9;
      nlohmann::ordered_json evidence;
      evidence["mode"] = kModes[i].name;
      evidence["since_step"] = mode.since_step;
      incident.evidence = JsonText(evidence);
      Say(process, about, std::move(incident));
    }
  }

 private:
  const std::int64_t min_steps_;
};

}  // namespace

const RuleDesc kDebugModeDesc{
    .name = "DebugMode",
    .summary = "A switch for debugging is on and makes each step slower.",
    .formula =
        "Events `debug.modes`, for min_steps TRAIN steps in a row. Medium: the anomaly mode of "
        "autograd, CUDA_LAUNCH_BLOCKING once CUDA is in use, tracemalloc. Low: a trace function "
        "(sys.settrace). What it costs is not known, since there are no steps without it to "
        "compare "
        "with. Over where an event says that it is off.",
    .how_to_fix = "Turn the switch off; turn it on only while you look for a fault.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .example = "torch.autograd.set_detect_anomaly(True)",
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeDebugMode(const Parameters& parameters) {
  return std::make_unique<DebugMode>(parameters);
}

}  // namespace telltale::rules::debug_mode
