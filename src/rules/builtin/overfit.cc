// SPDX-License-Identifier: Apache-2.0
// Overfit: the loss on new data is far above the loss on the training data.
//
// SageMaker Debugger's rule of this name sees losses of single saved steps. Here one evaluation is
// one point, beside the training since the one before; and a gap that comes with a validation loss
// which still falls is told from one with a validation loss that rises: only the second costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "rules/builtin/loss_course.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::overfit {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"tensor_regex", 0, "",
     "Losses are scalars with this in their names; empty: loss, what is "
     "called a validation loss, and the metrics of boosting.",
     ""},
    {"start_step", 0, "step", "Evaluations before this step say nothing."},
    {"patience", 1, "evaluations", "Evaluations in a row before anything is said."},
    {"ratio_threshold", 0.1, "", "Share of the training loss by which the other may be higher."},
    {"converged_below", 0.01, "",
     "A validation loss between 0 and this is low enough, whatever the training loss is."},
};

/// The validation loss has risen where it is above its best by this share, in so many evaluations
/// in a row: a single one is noisy.
constexpr double kRisen = 0.05;
constexpr std::int64_t kRisenInRow = 3;
/// So long a rise lasts until the validation loss is within this of its best again.
constexpr double kRisenNoMore = kRisen / 2;
/// The mean of the newest evaluations has risen where it is so many of its own standard deviations
/// above the level of which the best is the lowest; no more where it is below so much of that.
constexpr double kRisenSigmas = 3, kStaysRisen = 0.8;
/// Evaluations that are looked at: the newest; the fewest since the best, else those around it.
constexpr std::size_t kMostLooked = 64, kLeastSince = 6, kAround = 16;
/// Differences that tell how large the noise is.
constexpr int kLeastDifferences = 4;
/// Newest ones whose mean is compared: half of those since the best, within these.
constexpr std::size_t kLeastNewest = 3, kMostNewest = 8;

/// Standard deviation of one evaluation: from how much the loss rises on its way down to the best,
/// and falls on its way up from it. On a level half of the differences do, by √2 of it; a smooth
/// course has none. `since`: so many of the values are from the best on. 0: there are too few.
double NoiseOf(std::span<const double> values, std::size_t since) {
  const std::size_t best = values.size() - since;
  double squares = 0;
  int count = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    // The way into the best, and out of it, is as long as it is because it is the best.
    if (i == best || i == best + 1) continue;
    const double more = values[i] - values[i - 1];
    const double against = std::max(0.0, i < best ? more : -more);
    squares += against * against;
    ++count;
  }
  return count < kLeastDifferences ? 0 : std::sqrt(squares / count);
}

/// By how much the mean of the newest evaluations must lie above the best, so that the noise of
/// single ones does not explain it. `all`: evaluations so far, of which the best is the lowest.
double NoiseAbove(std::span<const double> values, std::size_t since, double all,
                  std::size_t newest) {
  since = std::min(since, values.size());
  const std::size_t looked = since >= kLeastSince ? since : std::min(kAround, values.size());
  // The lowest of so many normal ones is about so many standard deviations below their mean.
  const double lowest = std::max(2.0, std::sqrt(2 * std::log(std::max(1.0, all))));
  return (lowest + kRisenSigmas / std::sqrt(static_cast<double>(newest))) *
         NoiseOf(values.last(looked), since);
}

class Overfit final : public Rule {
 public:
  explicit Overfit(const Parameters& p)
      : courses_(p.Text("tensor_regex"), 0),
        start_step_(p.GetInt("start_step")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        threshold_(p.Get("ratio_threshold")),
        converged_below_(p.Get("converged_below")) {}

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
  struct Process : TrainingProcess {
    LossCourse course;
    double worked_s = 0;
    std::int64_t points = 0;
    std::int64_t bad_in_row = 0;
    std::int64_t good_in_row = 0;
    std::int64_t risen_in_row = 0;
    bool risen = false;
    CoursePoint first_bad;       ///< Of those in a row.
    CoursePoint best;            ///< Lowest validation loss.
    std::vector<double> losses;  ///< The newest validation losses,
    std::size_t since_best = 0;  ///< so many of them from the best on.
    double best_worked_s = 0;
    std::int64_t opened_step = -1;  ///< Of the finding, by the gap.
    std::int64_t opened_ns = 0;
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

  /// Another training of the same process has another model and perhaps other data.
  void BeginFit(Process* process, Reporter* reporter) {
    End(process, reporter);
    process->course.Restart();
    process->points = process->bad_in_row = process->good_in_row = process->risen_in_row = 0;
    process->risen = false;
    process->best = process->newest = {};
    process->losses.clear();
    process->since_best = 0;
  }

  void OnPoint(Process* process, const CoursePoint& point, Reporter* reporter) {
    if (!std::isfinite(point.validation) || !std::isfinite(point.train)) return;
    if (point.step < start_step_ || point.train <= 0) return;
    has_data_ = true;
    process->newest = point;
    if (process->points++ == 0 || point.validation < process->best.validation) {
      process->best = point;
      process->best_worked_s = process->worked_s;
      process->since_best = 0;
    }
    ++process->since_best;
    process->losses.push_back(point.validation);
    if (process->losses.size() > kMostLooked) process->losses.erase(process->losses.begin());
    const double beyond = BeyondNoise(*process);
    process->risen_in_row = beyond > 1 && Rise(*process) > kRisen ? process->risen_in_row + 1 : 0;
    process->risen = process->risen_in_row >= kRisenInRow ||
                     (process->risen && beyond > kStaysRisen && Rise(*process) > kRisenNoMore);
    const bool converged = point.validation >= 0 && point.validation < converged_below_;
    const bool bad = !converged && Gap(point) > threshold_;
    if (bad && process->bad_in_row == 0) process->first_bad = point;
    process->bad_in_row = bad ? process->bad_in_row + 1 : 0;
    process->good_in_row = bad ? 0 : process->good_in_row + 1;
    if (process->open && process->good_in_row >= patience_) {
      Describe(process);
      reporter->Recover(process->incident);
      process->open = false;
      return;
    }
    if (!process->open) {
      if (process->bad_in_row < patience_) return;
      processes_.Open(process, process->first_bad.step, process->first_bad.ns);
      process->incident.severity = Severity::kInfo;
      process->opened_step = process->first_bad.step;
      process->opened_ns = process->first_bad.ns;
    }
    Describe(process);
    reporter->Report(process->incident);
  }

  /// By which share the validation loss is above its lowest.
  static double Rise(const Process& process) {
    const double best = process.best.validation;
    return best > 0 ? process.newest.validation / best - 1 : 0;
  }

  /// The rise of the newest evaluations, in what noise explains: above 1 it does not.
  static double BeyondNoise(const Process& process) {
    const std::span<const double> losses(process.losses);
    const std::size_t newest =
        std::min(std::clamp(process.since_best / 2, kLeastNewest, kMostNewest), losses.size());
    double rise = 0;
    for (const double each : losses.last(newest)) rise += each - process.best.validation;
    rise /= static_cast<double>(newest);
    const double noise =
        NoiseAbove(losses, process.since_best, static_cast<double>(process.points), newest);
    if (rise <= 0) return 0;
    return noise > 0 ? rise / noise : std::numeric_limits<double>::infinity();
  }

  static double Gap(const CoursePoint& point) {
    return (point.validation - point.train) / point.train;
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

  void Describe(Process* process) {
    Incident& incident = process->incident;
    const CoursePoint& now = process->newest;
    const CoursePoint& best = process->best;
    const double rise = Rise(*process);
    const bool risen = process->risen;
    const double gap = Gap(now);
    // What it says of the gap began with the gap; a rise begins where the loss was lowest.
    incident.first_step =
        risen ? std::max(best.step, process->first_bad.step) : process->opened_step;
    incident.start_ns = risen ? std::max(best.ns, process->first_bad.ns) : process->opened_ns;
    incident.last_step = std::max(incident.first_step, now.step);
    incident.end_ns = std::max(incident.start_ns, now.ns);
    // It rises as long as the loss is above its best.
    incident.severity =
        !risen ? Severity::kInfo
               : std::max(incident.severity, rise > 0.5 ? Severity::kHigh : Severity::kMedium);
    // A training loss near 0 makes any share of it.
    incident.message =
        gap < 0    ? fmt::format("Validation loss {} % below training loss", Plain(-100 * gap))
        : gap < 10 ? fmt::format("Validation loss {} % above training loss", Plain(100 * gap))
                   : fmt::format("Validation loss {}, training loss {}", Figure(now.validation),
                                 Figure(now.train));
    if (risen) {
      const bool fell = now.train < best.train;
      incident.cause = fmt::format(
          "The validation loss was lowest at step {}, {}, and is {} by now, while the training "
          "loss "
          "{} from {} to {}{}.",
          best.step, Figure(best.validation), Figure(now.validation), fell ? "fell" : "went",
          Figure(best.train), Figure(now.train),
          fell ? ": the model learns its training data by heart" : ": it fell no further either");
      incident.advice = fmt::format(
          "Keep the model of step {}, the best (early stopping); then {}.", best.step,
          fell ? "add weight decay, dropout, augmentation or data, or take a smaller model"
               : "lower the learning rate");
    } else {
      const std::string course =
          process->since_best == 1 ? std::string("has not risen yet")
          : rise <= kRisen
              ? fmt::format("has not fallen for {} evaluation{}", process->since_best - 1,
                            process->since_best == 2 ? "" : "s")
          : BeyondNoise(*process) > 1
              ? fmt::format("has been above its lowest, {}, for only {} evaluations",
                            Figure(best.validation), process->since_best - 1)
              : "has risen by no more than its evaluations differ";
      incident.cause =
          fmt::format("The validation loss is {}, the training loss {}; the validation loss {}.",
                      Figure(now.validation), Figure(now.train), course);
      incident.advice =
          fmt::format("{}; to close the gap add weight decay, dropout, augmentation or data.",
                      process->since_best == 1
                          ? "Go on while the validation loss falls"
                          : fmt::format("Keep the model of step {}, the best so far", best.step));
    }
    // What followed the best model is lost.
    incident.cost_seconds = risen ? std::max(0.0, process->worked_s - process->best_worked_s) : 0;
    incident.confidence =
        std::min(0.95, 0.6 + 0.1 * static_cast<double>(process->bad_in_row) + (risen ? 0.2 : 0));
    nlohmann::ordered_json evidence;
    evidence["validation_loss"] = Rounded(now.validation);
    evidence["training_loss"] = Rounded(now.train);
    evidence["ratio"] = Rounded(gap);
    evidence["evaluations"] = process->points;
    evidence["in_a_row"] = process->bad_in_row;
    evidence["best_validation_loss"] = Rounded(best.validation);
    evidence["best_step"] = best.step;
    incident.evidence = JsonText(evidence);
  }

  LossCourses courses_;
  const std::int64_t start_step_;
  const std::int64_t patience_;
  const double threshold_;
  const double converged_below_;

  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kOverfitDesc{
    .name = "Overfit",
    .summary = "The validation loss is far above the training loss.",
    .formula =
        "An evaluation is a point: v = mean of what is called a validation loss (val_loss, "
        "eval_loss, valid/loss ...) between two training losses, else of the loss in mode EVAL; t "
        "= mean of the training losses since the point before. Of boosting each round is one: the "
        "first metric that is a loss, of the last evaluation set and of the training data. Bad "
        "where (v − t) / t > ratio_threshold, for t > 0, from start_step on, unless 0 ≤ v < "
        "converged_below. Open after patience points in a row, over after as many that are not. "
        "Info while v is within 5 % of its lowest, a gap that is common in healthy trainings, or "
        "where noise explains that it is higher: mean of the newest k evaluations (half of those "
        "since the lowest, 3 to 8) − lowest < (max(2, √(2 ln n)) + 3 / √k) σ, n = evaluations so "
        "far; σ² = mean of the squared falls since the lowest (of the newest 16, and of the rises "
        "before it, where fewer than 6 have followed; 0 where there are fewer than 4 differences). "
        "Medium after 3 evaluations in a row above both, high where v is 50 % above; info again "
        "where v is within 2.5 %, or the mean below 80 % of that noise. Cost "
        "= time of the TRAIN steps, less waits for data, since v was lowest, where it has risen "
        "so: the assumption is that its model is the one to keep. Another fit of the "
        "process (the next fold: a new optimizer, and a training loss back above the middle "
        "between its start and its best) begins anew.",
    .how_to_fix =
        "Stop where the validation loss is lowest and keep that model. Then: more data or "
        "augmentation, weight decay, dropout, a smaller model; of boosting a smaller max_depth, "
        "subsample and colsample_bytree below 1, a larger min_child_weight.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kModel,
    .example = "A network of 100,000 weights trained for 200 epochs on 50 samples.",
    .standing = {.theme = Theme::kFit, .order = 1},
    .data_mask = DataMask(Datum::kLoss, Datum::kEvaluation),
};

std::unique_ptr<Rule> MakeOverfit(const Parameters& parameters) {
  return std::make_unique<Overfit>(parameters);
}

}  // namespace telltale::rules::overfit
