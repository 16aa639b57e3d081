// SPDX-License-Identifier: Apache-2.0
// Confusion: a classifier takes some classes for others, and does not get better at it.
//
// SageMaker Debugger's rule of this name divides each element of the diagonal by the sum of the
// diagonal: with two classes of the same size a perfect model has 0.5 there, and fires. And it
// judges a model that has just begun to learn. Here an element of the diagonal is divided by its
// column, as the others are, and a matrix that still gets better is left alone until the end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/class_pairs.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::confusion {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"category_no", 0, "classes", "How many there are; 0: those that labels or predictions name."},
    {"labels", 0, "", "Labels are tensors with this in their names.", "labels"},
    {"predictions", 0, "", "Predictions are tensors with this in their names.", "predictions"},
    {"labels_collection", 0, "", "Tensors of this collection are labels too.", "labels"},
    {"predictions_collection", 0, "", "Tensors of this collection are predictions too.",
     "predictions"},
    {"min_diag", 0.9, "", "Least share of what is predicted as a class that is of this class."},
    {"max_off_diag", 0.1, "",
     "Greatest share of what is predicted as a class that is of one other class."},
    {"samples", 100, "labels", "Labels of a matrix; it goes on over captures until it has them."},
    {"patience", 3, "matrices", "Matrices without progress before anything is said."},
};

constexpr std::size_t kMostJudged = 256;  ///< Classes: the matrix has their square.
constexpr double kProgress = 0.01;        ///< Of the share that is right.
constexpr std::size_t kShown = 20;        ///< Classes up to which the evidence has the matrix.

/// counts[label][prediction].
struct Matrix {
  std::vector<std::vector<std::uint64_t>> counts;
  std::uint64_t samples = 0;

  void Add(std::size_t label, std::size_t predicted) {
    const std::size_t size = std::max({counts.size(), label + 1, predicted + 1});
    if (size > counts.size()) {
      counts.resize(size);
      for (auto& row : counts) row.resize(size);
    }
    ++counts[label][predicted];
    ++samples;
  }
};

/// What is worst about a matrix.
struct Verdict {
  bool bad = false;
  double right = 0;  ///< Share of all.
  std::size_t bad_classes = 0;
  double diagonal = 1;        ///< Least of them,
  std::size_t of_class = 0;   ///< and whose.
  double off_diagonal = 0;    ///< Greatest of them:
  std::size_t label = 0;      ///< what is of this class
  std::size_t predicted = 0;  ///< is predicted as this one.
};

class Confusion final : public Rule {
 public:
  explicit Confusion(const Parameters& p)
      : categories_(p.Get("category_no")),
        min_diagonal_(p.Get("min_diag")),
        max_off_diagonal_(p.Get("max_off_diag")),
        samples_(static_cast<std::uint64_t>(std::max<std::int64_t>(1, p.GetInt("samples")))),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        pairs_(LabelPairs::Names{.labels_regex = p.Text("labels"),
                                 .predictions_regex = p.Text("predictions"),
                                 .labels_collection = p.Text("labels_collection"),
                                 .predictions_collection = p.Text("predictions_collection")}) {}

  void Bind(const RuleContext& context) override { pairs_.Bind(context.values); }

  bool Wants(const Series& series) override { return pairs_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    // Where values are captured they say more.
    if (!has_data_) class_pairs_.OnRecord(record, reporter);
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind != "process.exit") return;
      processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
    }
  }

  void OnEnd(Reporter* reporter) override {
    class_pairs_.OnEnd(reporter);
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_ || class_pairs_.has_data(); }
  std::string Missing() const override { return class_pairs_.Missing(); }

 private:
  /// Of the training, or of evaluations.
  struct Side {
    bool evaluation = false;
    Matrix growing, newest;
    std::int64_t first_step = -1;  ///< Of the growing one.
    std::int64_t first_ns = 0;
    std::int64_t newest_step = -1;
    std::int64_t newest_ns = 0;
    Verdict verdict;             ///< Of the newest.
    double best = 0;             ///< Greatest share that was right, as of the last progress.
    std::int64_t stale = 0;      ///< Matrices since then.
    std::int64_t bad_step = -1;  ///< Since when they are bad in a row.
    std::int64_t bad_ns = 0;
    bool open = false;  ///< The incident is.
    Incident incident;

    bool IsGood() const { return newest_step >= 0 && !verdict.bad; }
  };

  struct Process : TrainingProcess {
    Side training, evaluation{.evaluation = true};
  };

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    const LabelPairs::Taken taken = pairs_.Take(record, row);
    if (!taken.both()) return;
    const LabelBatch& batch = *taken.batch;
    Side* const side = batch.evaluation ? &process->evaluation : &process->training;
    const auto labels = ClassesOf(*batch.labels);
    if (!labels) return;
    const auto predicted = PredictedClasses(*batch.predictions, *labels, batch.labels->count());
    if (!predicted) return;
    if (side->growing.samples == 0) {
      side->first_step = row.step;
      side->first_ns = row.time_ns;
    }
    const double most = categories_ > 0 ? std::min(categories_, double{kMostJudged}) : kMostJudged;
    for (std::size_t i = 0; i < labels->size(); ++i) {
      const std::int32_t label = (*labels)[i];
      const std::int32_t guess = (*predicted)[i];
      if (label == kNoClass || guess == kNoClass || label >= most || guess >= most) continue;
      side->growing.Add(static_cast<std::size_t>(label), static_cast<std::size_t>(guess));
    }
    if (side->growing.samples < samples_) return;
    side->newest = std::exchange(side->growing, {});
    side->newest_step = row.step;
    side->newest_ns = row.time_ns;
    has_data_ = true;
    Judge(process, side, reporter);
  }

  Verdict Look(const Matrix& matrix) const {
    Verdict out;
    const std::size_t size = matrix.counts.size();
    std::uint64_t right = 0;
    for (std::size_t i = 0; i < size; ++i) {
      std::uint64_t column = 0;
      std::uint64_t of_class = 0;
      for (std::size_t j = 0; j < size; ++j) {
        column += matrix.counts[j][i];
        of_class += matrix.counts[i][j];
      }
      right += matrix.counts[i][i];
      if (column == 0 && of_class == 0) continue;
      // Nothing is predicted as a class that there is: none of it is right.
      const double diagonal =
          column == 0 ? 0 : static_cast<double>(matrix.counts[i][i]) / static_cast<double>(column);
      bool bad = diagonal < min_diagonal_;
      if (diagonal < out.diagonal) {
        out.diagonal = diagonal;
        out.of_class = i;
      }
      for (std::size_t j = 0; j < size && column > 0; ++j) {
        if (j == i) continue;
        const double off = static_cast<double>(matrix.counts[j][i]) / static_cast<double>(column);
        bad = bad || off > max_off_diagonal_;
        if (off <= out.off_diagonal) continue;
        out.off_diagonal = off;
        out.label = j;
        out.predicted = i;
      }
      out.bad_classes += bad ? 1 : 0;
    }
    out.right = static_cast<double>(right) / static_cast<double>(matrix.samples);
    out.bad = out.bad_classes > 0;
    return out;
  }

  void Judge(Process* process, Side* side, Reporter* reporter) {
    const Verdict verdict = side->verdict = Look(side->newest);
    if (verdict.right > side->best + kProgress) {
      side->best = verdict.right;
      side->stale = 0;
    } else {
      ++side->stale;
    }
    if (!verdict.bad) {
      side->bad_step = -1;
      if (side->open) reporter->Recover(side->incident);
      side->open = false;
    } else {
      if (side->bad_step < 0) {
        side->bad_step = std::max<std::int64_t>(0, side->first_step);
        side->bad_ns = side->first_ns;
      }
      if (side->open || side->stale >= patience_) Say(process, side, reporter);
    }
    // What evaluations show says how much the training's matrix means.
    if (side->evaluation && process->training.open) Say(process, &process->training, reporter);
  }

  void Say(Process* process, Side* side, Reporter* reporter) {
    if (!side->open) {
      processes_.Open(process, side->bad_step, side->bad_ns);
      side->open = true;
      side->incident = process->incident;
      if (side->evaluation) side->incident.subject += ", evaluation";
    }
    Describe(*process, side);
    reporter->Report(side->incident);
  }

  /// No record of the process follows: what the last matrices say is what the model can.
  void End(Process* process, Reporter* reporter) {
    for (Side* side : {&process->training, &process->evaluation}) {
      if (side->verdict.bad && side->newest_step >= 0) Say(process, side, reporter);
    }
    Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    for (Side* side : {&process->training, &process->evaluation}) {
      if (side->open) reporter->Close(side->incident);
      side->open = false;
    }
    process->open = false;
  }

  void Describe(const Process& process, Side* side) {
    Incident& incident = side->incident;
    const Verdict& verdict = side->verdict;
    const std::size_t classes = side->newest.counts.size();
    // What is not of an evaluation is not always of the training: with XGBoost, whose steps are all
    // TRAIN, it is of the evaluation set where there is one.
    const char* const in = side->evaluation ? " in the evaluation" : "";
    const char* const of = side->evaluation ? " of the evaluation" : "";
    incident.last_step = std::max(incident.first_step, side->newest_step);
    incident.end_ns = std::max(incident.start_ns, side->newest_ns);
    incident.severity = verdict.right < min_diagonal_ / 2 ? Severity::kHigh
                        : verdict.right < min_diagonal_   ? Severity::kMedium
                                                          : Severity::kLow;
    incident.message =
        fmt::format("{} of {} classes are confused{}", verdict.bad_classes, classes, in);
    incident.cause =
        verdict.off_diagonal > 0
            ? fmt::format(
                  "Of what is predicted as class {}, {} % is of class {}; {} % of {} labels{} are "
                  "predicted right.",
                  verdict.predicted, Plain(100 * verdict.off_diagonal), verdict.label,
                  Plain(100 * verdict.right), side->newest.samples, of)
            : fmt::format(
                  "Nothing is predicted as class {}; {} % of {} labels{} are predicted right.",
                  verdict.of_class, Plain(100 * verdict.right), side->newest.samples, of);
    incident.advice =
        verdict.right < min_diagonal_
            ? "Look at samples of these two classes and their labels; then a larger model, a "
              "longer "
              "training or better features."
            : "Look at the rare classes: weight the loss by class, or collect more of them.";
    if (!side->evaluation && process.evaluation.IsGood()) {
      // Dropout and augmentation make a training's predictions worse than the model is.
      incident.severity = Severity::kLow;
      incident.cause += " In the evaluation the model tells all classes apart.";
      incident.advice =
          "Where the training has neither dropout nor augmentation, look at the labels of its "
          "samples of these two classes.";
    }
    // A matrix of few labels may be bad by chance.
    const auto samples = static_cast<double>(side->newest.samples);
    incident.confidence = std::min(0.95, 0.5 + 0.5 * samples / (samples + 100));
    nlohmann::ordered_json evidence;
    evidence["labels"] = side->newest.samples;
    evidence["classes"] = classes;
    evidence["right"] = Rounded(verdict.right);
    evidence["least_diagonal"] = Rounded(verdict.diagonal);
    evidence["greatest_off_diagonal"] = Rounded(verdict.off_diagonal);
    evidence["without_progress"] = side->stale;
    evidence["of"] = side->evaluation ? "evaluation" : "training";
    if (classes <= kShown) evidence["confusion"] = side->newest.counts;
    incident.evidence = JsonText(evidence);
  }

  const double categories_;
  const double min_diagonal_;
  const double max_off_diagonal_;
  const std::uint64_t samples_;
  const std::int64_t patience_;

  LabelPairs pairs_;
  ClassPairs class_pairs_;
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kConfusionDesc{
    .name = "Confusion",
    .summary = "A classifier takes some classes for others.",
    .formula =
        "conf[j][i] = labels j that are predicted as i, over captures of labels and predictions of "
        "the same step until there are `samples` of them; of the training and of evaluations, each "
        "apart. A matrix is bad where conf[i][i] / Σ_j conf[j][i] < min_diag for a class "
        "i, or conf[j][i] / Σ_j conf[j][i] > max_off_diag for a pair. (SageMaker Debugger divides "
        "the diagonal by its own sum, which says 1 / classes of a perfect model.) Nothing is said "
        "while the share that is predicted right grows by more than 0.01 within patience matrices; "
        "at the end of the process the last matrix counts as it is. High where less than min_diag "
        "/ 2 is predicted right, medium below min_diag, else low; of the training low at most "
        "where the newest matrix of evaluations is good. Over where a matrix is good. At most "
        "256 classes. Where no values are captured: of the events `batch.classes`, of 4 to 256 "
        "classes, training and evaluation each apart, the newest counts until they have 250 "
        "samples and 25 a class. Medium where of the labels of two classes, each with 10 or "
        "more, a share is predicted as the other one that is above 0.25 beyond doubt (Wilson, "
        "z = 2.6), these are 80 % of their mistakes, of 100 or more other labels 90 % are "
        "right, and the counts before them, half as many as the fewest, say the same. Over below "
        "0.15. Costs "
        "no time: the result is at stake.",
    .how_to_fix =
        "Look at samples of the two classes that the cause names: wrong labels and classes that "
        "overlap are common. Then more of these samples, features that tell them apart, a larger "
        "model, or a loss weighted by class.",
    .table_mask = store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kLabelCaptures,
    .family = Family::kModel,
    .example =
        "`xgboost.train({\"objective\": \"binary:logistic\"}, dtrain, evals=[(dtest, "
        "\"test\")])` on data of which a fifth has the wrong label."};

std::unique_ptr<Rule> MakeConfusion(const Parameters& parameters) {
  return std::make_unique<Confusion>(parameters);
}

}  // namespace telltale::rules::confusion
