// SPDX-License-Identifier: Apache-2.0
// SkippedSteps: backward passes are made, and the optimizer does not step: a gradient scaler, or
// the loop's own check, skips it again and again.
//
// A scaler looks for its scale in its first steps; an attack on the input, a saliency map or a
// two-step optimizer makes gradients that no optimizer is meant to use. None of these is a defect.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::skipped_steps {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_skipped", 50, "steps", "Steps in a row without the optimizer before anything is said."},
    {"window_steps", 200, "steps", "Steps over which the skips of a gradient scaler are counted."},
    {"medium_percent", 10, "%", "Share of them from which the finding is medium."},
};

/// A loss that went backward this many times larger than before was multiplied: float16 has no room
/// for its gradients.
constexpr double kOverflow = 1e4;
/// Steps of a process in which a scaler looks for its scale.
constexpr std::int64_t kStart = 50;

struct Process : LoopProcess {
  std::int64_t stepped = -1;        ///< The last step in which an optimizer stepped.
  std::int64_t in_row = 0;          ///< Skipped since.
  std::int64_t first_skipped = -1;  ///< Of these.
  std::int64_t first_ns = 0;
  std::int64_t total = 0;  ///< Skipped in all.
  std::int64_t made = 0;   ///< Steps in which an optimizer stepped.
  double scale = 0;        ///< Of a gradient scaler, now; 0: there is none.
  std::deque<bool> newest;
  std::int64_t newest_skipped = 0;
  double loss = 0;                ///< The newest that went backward.
  double loss_made = 0;           ///< That of the last step that the optimizer made.
  double loss_risen = 0;          ///< One of a skipped step, far above that.
  std::int64_t broken_step = -1;  ///< The newest step with a gradient or loss that is no number.
  std::string broken;             ///< What was none.
};

std::string Number(double value) { return fmt::format("{:.3g}", value); }

class SkippedSteps final : public LoopRule<Process> {
 public:
  explicit SkippedSteps(const Parameters& p)
      : min_(std::max<std::int64_t>(2, p.GetInt("min_skipped"))),
        window_(static_cast<std::size_t>(std::max<std::int64_t>(20, p.GetInt("window_steps")))),
        medium_(p.Get("medium_percent") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kScalars) {
      return series.mode == "TRAIN" && (series.name == "grad_scale" || series.name == "loss");
    }
    if (series.table == format::TableId::kStatistics) {
      return series.mode == "TRAIN" && series.collection == "gradients";
    }
    return true;
  }

 protected:
  std::string Lacks() const override { return "no optimizer call was recorded"; }
  bool Reads(std::string_view) const override { return false; }
  void OnEvent(const format::EventRow&, const nlohmann::json&, Process*) override {}

  void OnScalar(const format::ScalarRow& row, Process* process) override {
    if (row.name == "grad_scale") {
      process->scale = row.value;
    } else if (std::isfinite(row.value)) {
      process->loss = std::abs(row.value);
    } else {
      Broken(process, row.step, "the loss");
    }
  }
  void OnStatistic(const format::StatisticRow& row, Process* process) override {
    if (row.nan_count + row.inf_count > 0) Broken(process, row.step, row.name);
  }

  void OnStep(const format::StepRow& row, Process* process) override {
    if (row.optimizer_calls == 0 && !row.skipped) return;  // It makes its steps by itself.
    SeesData();
    Count(row, process);
    if (!row.skipped) {
      process->stepped = row.step;
      process->in_row = 0;
      process->first_skipped = -1;
      process->loss_made = process->loss;
      process->loss_risen = 0;
      ++process->made;
      TakeBack(process, "");
    } else {
      ++process->total;
      if (process->in_row++ == 0) {
        process->first_skipped = row.step;
        process->first_ns = row.time_ns;
      }
      if (process->loss_made > 0 && process->loss > kOverflow * process->loss_made) {
        process->loss_risen = process->loss;
      }
      if (process->in_row >= min_) SayNone(process);
    }
    SayOften(process);
  }

 private:
  static void Broken(Process* process, std::int64_t step, std::string_view what) {
    process->broken_step = std::max(process->broken_step, step);
    process->broken = what;
  }

  void Count(const format::StepRow& row, Process* process) const {
    if (process->steps <= kStart) return;
    process->newest.push_back(row.skipped);
    process->newest_skipped += row.skipped ? 1 : 0;
    if (process->newest.size() <= window_) return;
    process->newest_skipped -= process->newest.front() ? 1 : 0;
    process->newest.pop_front();
  }

  /// Words for why, as far as it is known.
  static std::string Why(const Process& process) {
    std::string why;
    if (process.broken_step >= process.first_skipped && process.broken_step >= 0) {
      why = fmt::format(" Gradients are not finite: {} held NaN or Inf in step {}.", process.broken,
                        process.broken_step);
    }
    if (process.loss_risen > 0) {
      why += fmt::format(
          " The loss that backward() is called on rose from {} to {} as they began: probably it is "
          "multiplied by a large factor, and gradients overflow.",
          Number(process.loss_made), Number(process.loss_risen));
    }
    if (process.scale > 0) {
      why += fmt::format(" The scale of the gradient scaler is {}.", Number(process.scale));
    }
    return why;
  }

  void SayNone(Process* process) {
    const bool broken = process->broken_step >= process->first_skipped && process->broken_step >= 0;
    // Without either it may be on purpose: gradients for their own sake.
    const bool known = broken || process->scale > 0 || process->loss_risen > 0;
    Incident incident = BeginAt(process->first_skipped, process->first_ns,
                                known ? Severity::kHigh : Severity::kLow);
    incident.message =
        process->made > 0
            ? fmt::format("The optimizer has not stepped since step {}: {} backward passes skipped",
                          process->stepped, process->in_row)
            : fmt::format("The optimizer has never stepped: {} backward passes skipped",
                          process->in_row);
    incident.cause = fmt::format(
        "In each of these steps gradients were computed and the optimizer did not step; the loss "
        "goes on, the weights stay as they are.{}",
        Why(*process));
    incident.advice = fmt::format(
        "Find the first value that is not finite (telltale run --rule NonFiniteOrigin, or "
        "torch.autograd.set_detect_anomaly(True)){}",
        process->scale > 0
            ? "; a scale that falls to 0 means that the gradients are not finite at any scale."
            : "; a loss scale of your own must fall where the gradients overflow, as that of "
              "torch.amp.GradScaler does.");
    incident.confidence = known ? 0.95 : 0.5;
    incident.evidence = EvidenceOf(*process);
    Say(process, "", std::move(incident));
  }

  void SayOften(Process* process) {
    if (process->scale <= 0 || process->newest.size() < window_) return;
    const double share =
        static_cast<double>(process->newest_skipped) / static_cast<double>(process->newest.size());
    // A step in a few hundred is how a scaler finds the largest scale that works. Each second one
    // of an optimizer with two passes changes no scale.
    if (share < medium_ || IsSaid(*process, "")) {
      if (share < medium_ / 2 || IsSaid(*process, "")) TakeBack(process, "scaler");
      return;
    }
    if (process->broken_step < 0 && process->scale >= 1) return;
    Incident incident =
        BeginAt(process->last_step - static_cast<std::int64_t>(process->newest.size()) + 1,
                process->end_ns, Severity::kMedium);
    incident.message =
        fmt::format("The gradient scaler skips {} % of the optimizer's steps", Figure(100 * share));
    incident.cause = fmt::format("{} of the newest {} steps were skipped.{}",
                                 process->newest_skipped, process->newest.size(), Why(*process));
    incident.advice =
        "Look where values leave the range of float16 (telltale run --rule NonFiniteOrigin); "
        "bfloat16 needs no scaler.";
    incident.confidence = 0.85;
    incident.evidence = EvidenceOf(*process);
    Say(process, "scaler", std::move(incident));
  }

  static std::string EvidenceOf(const Process& process) {
    nlohmann::ordered_json evidence;
    evidence["last_step_made"] = process.stepped;
    evidence["skipped_in_row"] = process.in_row;
    evidence["skipped"] = process.total;
    evidence["steps"] = process.total + process.made;
    if (process.loss_risen > 0) {
      evidence["loss_before"] = process.loss_made;
      evidence["loss_then"] = process.loss_risen;
    }
    if (process.scale > 0) evidence["scale"] = process.scale;
    if (process.broken_step >= 0) {
      evidence["not_finite"] = process.broken;
      evidence["not_finite_step"] = process.broken_step;
    }
    return JsonText(evidence);
  }

  const std::int64_t min_;
  const std::size_t window_;
  const double medium_;
};

}  // namespace

const RuleDesc kSkippedStepsDesc{
    .name = "SkippedSteps",
    .summary = "Backward passes are made, and the optimizer does not step.",
    .formula =
        "A TRAIN step is skipped where a gradient scaler skipped the optimizer, or where its "
        "gradients were cleared before an optimizer had stepped. min_skipped of them in a row: "
        "high where a captured gradient or the loss held NaN or Inf since they began, where the "
        "loss rose by 10,000 times as they began, or where there is a gradient scaler; else low, "
        "since gradients may be wanted for their own sake "
        "(an attack, a saliency map). Over with the next step that the optimizer makes. Of a "
        "scaler, the first 50 steps apart: medium where medium_percent of the newest window_steps "
        "were skipped, and a gradient held NaN or Inf or the scale is below 1; over at half of it.",
    .how_to_fix =
        "Find what is not finite: telltale run --rule NonFiniteOrigin, or "
        "torch.autograd.set_detect_anomaly(True). Train in bfloat16, or keep what overflows in "
        "float32.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kStatistics),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "if all(p.grad.isfinite().all() for p in model.parameters()): optimizer.step()",
    .standing = {.theme = Theme::kLearning, .order = 1},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeSkippedSteps(const Parameters& parameters) {
  return std::make_unique<SkippedSteps>(parameters);
}

}  // namespace telltale::rules::skipped_steps
