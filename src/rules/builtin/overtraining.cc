// SPDX-License-Identifier: Apache-2.0
// Overtraining: the training goes on although its loss, or the loss on new data, gets no better.
//
// SageMaker Debugger's rule of this name counts saved steps, and each step has the noise of its
// batch. Here a point of the training loss is the mean of a block of steps, a point of the
// validation loss a whole evaluation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/json.h"
#include "rules/builtin/loss_course.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::overtraining {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"patience_train", 5, "blocks",
     "Blocks, or rounds of boosting, without a better training loss."},
    {"patience_validation", 10, "evaluations", "Evaluations without a better validation loss."},
    {"delta", 0.01, "", "A loss is better where it is lower than the lowest by more than this."},
    {"block_steps", 100, "steps", "Training losses whose mean is a point."},
};

class Overtraining final : public Rule {
 public:
  explicit Overtraining(const Parameters& p)
      : courses_("", std::max<std::int64_t>(1, p.GetInt("block_steps"))),
        patience_train_(std::max<std::int64_t>(1, p.GetInt("patience_train"))),
        patience_validation_(std::max<std::int64_t>(1, p.GetInt("patience_validation"))),
        delta_(p.Get("delta")) {}

  bool Wants(const Series& series) override { return courses_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* scalar = record.As<format::ScalarRow>()) {
      Process* process = Find(*scalar, reporter);
      if (process == nullptr) return;
      if (courses_.BeginsFit(&process->course, record.series, *scalar)) BeginFit(process, reporter);
      const auto point = courses_.Take(&process->course, record.series, *scalar);
      if (point) OnPoint(process, *point, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode != "TRAIN" || step->duration_ns <= 0) return;
      Process* process = Find(*step, reporter);
      if (process == nullptr || !process->BeginStep(step->step)) return;
      const std::int64_t waited =
          std::clamp<std::int64_t>(step->data_wait_ns, 0, step->duration_ns);
      process->worked_s += static_cast<double>(step->duration_ns - waited) / 1e9;
      process->course.fits.SeeStep(step->step);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  /// The lowest of a loss so far, and how long ago it was.
  struct Best {
    double value = std::numeric_limits<double>::infinity();
    std::int64_t step = -1;
    std::int64_t ns = 0;
    double worked_s = 0;
    std::int64_t stale = 0;  ///< Points since then.
    double newest = std::numeric_limits<double>::quiet_NaN();
  };

  struct Process : TrainingProcess {
    LossCourse course;
    double worked_s = 0;
    Best train, validation;
    CoursePoint newest;
  };

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
  }

  void OnEvent(const format::EventRow& event, Reporter* reporter) {
    if (event.kind == "process.exit") {
      processes_.End(event, writer_, [&](Process* process) { End(process, reporter); });
    } else if (FitEvents::Wants(event.kind)) {
      Process* process = Find(event, reporter);
      if (process == nullptr) return;
      process->course.fits.See(event);
      if (event.kind != "boosting.start") return;
      BeginFit(process, reporter);
      process->course.boosting = true;
    }
  }

  /// Another training of the same process has another model.
  void BeginFit(Process* process, Reporter* reporter) {
    End(process, reporter);
    process->course.Restart();
    process->train = process->validation = {};
  }

  void See(Best* best, double value, const Process& process) const {
    if (!std::isfinite(value)) return;
    best->newest = value;
    if (value < best->value - delta_) {
      *best = {value, process.newest.step, process.newest.ns, process.worked_s, 0, value};
    } else {
      ++best->stale;
    }
  }

  void OnPoint(Process* process, const CoursePoint& point, Reporter* reporter) {
    has_data_ = true;
    process->newest = point;
    See(&process->train, point.train, *process);
    See(&process->validation, point.validation, *process);
    const bool train = process->train.stale >= patience_train_;
    const bool validation = process->validation.stale >= patience_validation_;
    // What new data say counts more; while they say that it gets better, it does.
    const bool improving =
        process->validation.step >= 0 && !validation && process->validation.stale == 0;
    if (!validation && (!train || improving)) {
      if (process->open) reporter->Recover(process->incident);
      process->open = false;
      return;
    }
    const Best& best = validation ? process->validation : process->train;
    if (!process->open) {
      processes_.Open(process, std::max<std::int64_t>(0, best.step), best.ns);
    }
    Describe(process, best, validation);
    reporter->Report(process->incident);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    if (const auto point = courses_.Finish(&process->course)) OnPoint(process, *point, reporter);
    Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process, const Best& best, bool validation) const {
    Incident& incident = process->incident;
    const bool risen = validation && best.newest > best.value + delta_;
    incident.last_step = std::max({incident.first_step, process->newest.step, process->last_step});
    incident.end_ns = std::max(incident.start_ns, process->newest.ns);
    incident.severity = std::max(incident.severity, risen ? Severity::kMedium : Severity::kLow);
    incident.message = fmt::format("{} loss no better since step {}",
                                   validation ? "Validation" : "Training", best.step);
    incident.cause = fmt::format(
        "The lowest {} loss was {} at step {}; in {} {} since then none was lower by more than {}, "
        "the newest is {}.",
        validation ? "validation" : "training", Figure(best.value), best.step, best.stale,
        validation ? "evaluations" : "blocks or rounds", Figure(delta_), Figure(best.newest));
    incident.advice =
        validation
            ? fmt::format("Stop there: early stopping, and keep the model of step {}.", best.step)
            : "Stop there, or lower the learning rate where more is to be had.";
    incident.cost_seconds = std::max(0.0, process->worked_s - best.worked_s);
    incident.confidence = risen ? 0.9 : 0.7;
    nlohmann::ordered_json evidence;
    evidence["loss"] = validation ? "validation" : "training";
    evidence["best"] = Rounded(best.value);
    evidence["best_step"] = best.step;
    evidence["newest"] = Rounded(best.newest);
    evidence["without_progress"] = best.stale;
    // At a rate of 0 nothing gets better.
    evidence[kExplainedBy] = {"LearningRateSchedule"};
    incident.evidence = JsonText(evidence);
  }

  LossCourses courses_;
  const std::int64_t patience_train_;
  const std::int64_t patience_validation_;
  const double delta_;

  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kOvertrainingDesc{
    .name = "Overtraining",
    .summary = "The training goes on although its loss gets no better.",
    .formula =
        "A point of the training loss is the mean of block_steps losses, one of the validation "
        "loss is an evaluation: the mean of what is called a validation loss, else of the loss in "
        "mode EVAL; a round of boosting is a point of both. A point is progress where it is lower "
        "than the lowest before by more than delta (absolute). Open with patience_validation "
        "evaluations without progress: medium where the newest is above the lowest by more than "
        "delta, else low; or with patience_train points of the training loss without progress, "
        "unless the newest evaluation was progress: low too, so that actions, which act from low, "
        "may stop it. Over with the next progress. Cost = time "
        "of the TRAIN steps since the lowest, less waits for data: the assumption is that its "
        "model is the one to keep.",
    .how_to_fix =
        "Stop early (EarlyStopping of Keras and Lightning, early_stopping_rounds of XGBoost) and "
        "keep the best checkpoint. Where more is to be had: a lower learning rate, or a schedule.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kModel,
    // A training that has converged and goes on for a while is no defect to most people.
    .by_default = false,
    .example =
        "`xgboost.train(params, dtrain, num_boost_round=500, evals=[(dval, \"val\")])` "
        "without early_stopping_rounds, where round 40 was the best.",
    .standing = {.theme = Theme::kFit, .order = 2},
    .data_mask = DataMask(Datum::kLoss, Datum::kEvaluation),
};

std::unique_ptr<Rule> MakeOvertraining(const Parameters& parameters) {
  return std::make_unique<Overtraining>(parameters);
}

}  // namespace telltale::rules::overtraining
