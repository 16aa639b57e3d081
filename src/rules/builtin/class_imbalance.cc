// SPDX-License-Identifier: Apache-2.0
// ClassImbalance: some classes are far rarer than others, or one is left behind by a model that
// gets the others right.
//
// SageMaker Debugger's rule of this name divides the counts of the classes as soon as it has seen
// `samples` labels: five labels a class are then an imbalance by chance. And it takes a class for
// neglected where most of its samples are mispredicted, which at the begin of a training is so for
// every class. Here counts must differ beyond chance, and a class is neglected only beside others
// that are not.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "rules/builtin/class_shares.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::class_imbalance {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold_imbalance", 10, "",
     "Labels of the most frequent class for one of the rarest, above which they are imbalanced."},
    {"threshold_misprediction", 0.7, "",
     "Share of a class that is mispredicted, above which it is left behind."},
    {"samples", 500, "labels", "Labels before anything is said; the labels of a window."},
    {"argmax", 0, "",
     "1: predictions hold a score for each class, whatever else there is is left out; 0: their "
     "shape says what they are."},
    {"patience", 3, "windows", "Windows in a row in which a class is left behind."},
    {"labels_regex", 0, "",
     "Labels are tensors with this in their names, and those of the "
     "collection labels.",
     ".*labels"},
    {"predictions_regex", 0, "",
     "Predictions are tensors with this in their names, those of the "
     "collection predictions, and what a model gives at its root.",
     ".*predictions"},
};

/// More classes than these are words of a vocabulary: their counts differ by nature.
constexpr std::size_t kMostJudged = 1000;
/// Labels of a class in a window that say something of it.
constexpr std::uint64_t kLeastOfClass = 10;
constexpr std::size_t kNamed = 16;  ///< Classes that the evidence names.
/// Bits that the labels of a batch hold, from which on the same ones again are the same samples.
constexpr double kNoChanceBits = 40;
constexpr std::size_t kKnownBatches = 4096;
/// How many times the variance that chance gives the count of a class in a batch may have.
constexpr double kMixed = 4;
/// Of samples that come in the order of their classes: how often a class comes anew before it is
/// judged how often it comes.
constexpr std::uint64_t kTurns = 3;

class ClassImbalance final : public Rule {
 public:
  explicit ClassImbalance(const Parameters& p)
      : imbalance_(p.Get("threshold_imbalance")),
        misprediction_(p.Get("threshold_misprediction")),
        samples_(static_cast<std::uint64_t>(std::max<std::int64_t>(1, p.GetInt("samples")))),
        argmax_(p.Get("argmax") != 0),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        pairs_(LabelPairs::Names{.labels_regex = p.Text("labels_regex"),
                                 .predictions_regex = p.Text("predictions_regex")}),
        class_shares_(imbalance_, misprediction_, samples_, patience_) {}

  void Bind(const RuleContext& context) override { pairs_.Bind(context.values); }

  bool Wants(const Series& series) override { return pairs_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    // Where values are captured they say more.
    if (!has_data_) class_shares_.OnRecord(record, reporter);
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind != "process.exit") return;
      processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
    }
  }

  void OnEnd(Reporter* reporter) override {
    class_shares_.OnEnd(reporter);
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_ || class_shares_.has_data(); }
  std::string Missing() const override { return class_shares_.Missing(); }

 private:
  /// How often a class came.
  struct Came {
    std::uint64_t labels = 0;
    double squares = 0;        ///< Sum of the squares of its labels in each batch.
    std::uint64_t turns = 0;   ///< Batches that have it, after one without it.
    std::uint64_t newest = 0;  ///< Number of the newest batch that has it, from 1.

    /// Variance of the count of a batch, by the one that labels which are drawn by chance have.
    double Dispersion(std::uint64_t batches) const {
      if (batches < 2 || labels == 0) return 1;
      const auto n = static_cast<double>(batches);
      const double mean = static_cast<double>(labels) / n;
      return (squares / n - mean * mean) * n / (n - 1) / mean;
    }
  };

  /// Labels of the training, or of evaluations.
  struct Side {
    bool evaluation = false;
    std::vector<Came> counts;  ///< Of all labels, by class.
    std::uint64_t labels = 0;
    std::uint64_t batches = 0;              ///< That were counted.
    std::uint64_t came = 0;                 ///< Batches, those that came again too.
    std::uint64_t next = 0;                 ///< Labels at which the counts are looked at again.
    std::unordered_set<std::string> known;  ///< Digests of labels that were counted.
    std::string first;                      ///< Digest of the first labels;
    bool varied = false;                    ///< others have come.
    bool imbalanced = false;
    bool open = false;  ///< The incident is.
    Incident incident;

    std::vector<std::uint64_t> seen, wrong;  ///< By class, since it was judged last.
    std::uint64_t window = 0;                ///< Labels with predictions in the window,
    std::uint64_t window_wrong = 0;          ///< and those of them that were mispredicted.
    std::vector<std::int64_t> behind;  ///< By class: windows in a row in which it was left behind.
    bool neglects = false;
    double all_wrong = 0;       ///< Share, in the last window.
    std::vector<double> share;  ///< Of each class that was mispredicted in it; NaN: too few.
  };

  struct Process : TrainingProcess {
    std::array<Side, 2> sides{Side{}, Side{.evaluation = true}};
  };

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    const LabelPairs::Taken taken = pairs_.Take(record, row);
    if (taken.batch == nullptr || !taken.batch->labels) return;
    const LabelBatch& batch = *taken.batch;
    const auto classes = ClassesOf(*batch.labels);
    if (!classes) return;
    Side* side = &process->sides[batch.evaluation ? 1 : 0];
    process->last_step = std::max(process->last_step, row.step);
    bool news = false;
    if (taken.labels) news = Count(side, *classes, batch.digest);
    if (taken.both()) news = Compare(side, *classes, batch) || news;
    if (news) Judge(process, side, row, reporter);
  }

  template <class Of>
  static Of& At(std::vector<Of>* all, std::int32_t of_class) {
    const auto at = static_cast<std::size_t>(of_class);
    if (all->size() <= at) all->resize(at + 1);
    return (*all)[at];
  }

  /// True where the counts were looked at.
  bool Count(Side* side, const std::vector<std::int32_t>& classes, const std::string& digest) {
    std::map<std::int32_t, std::uint64_t> batch;
    std::uint64_t labels = 0;
    for (const std::int32_t c : classes) {
      if (c == kNoClass) continue;
      ++batch[c];
      ++labels;
    }
    if (labels == 0) return false;
    ++side->came;
    for (const auto& [of_class, count] : batch) {
      Came& came = At(&side->counts, of_class);
      if (came.newest == 0 || came.newest + 1 != side->came) ++came.turns;
      came.newest = side->came;
    }
    if (IsKnown(side, batch, labels, digest)) {
      // It adds nothing to the counts, but the samples may have come round by now.
      return side->labels >= samples_ && !side->imbalanced && Look(side);
    }
    ++side->batches;
    side->labels += labels;
    for (const auto& [of_class, count] : batch) {
      Came& came = At(&side->counts, of_class);
      came.labels += count;
      came.squares += static_cast<double>(count) * static_cast<double>(count);
    }
    if (side->labels < std::max(samples_, side->next)) return false;
    side->next = side->labels + samples_;
    has_data_ = true;
    Look(side);
    return true;
  }

  /// Whether the counts are imbalanced.
  bool Look(Side* side) const {
    const Extremes extremes = ExtremesOf(*side);
    side->imbalanced = extremes.classes >= 2 && extremes.classes <= kMostJudged &&
                       extremes.ratio > imbalance_ &&
                       (side->imbalanced || extremes.least_ratio > imbalance_);
    return side->imbalanced;
  }

  /// The same samples again: those of an evaluation set come in each epoch, in boosting in each
  /// round. Few labels, or such as are nearly all of one class, are the same by chance, unless no
  /// others have come.
  static bool IsKnown(Side* side, const std::map<std::int32_t, std::uint64_t>& batch,
                      std::uint64_t labels, const std::string& digest) {
    if (digest.empty()) return false;
    if (side->first.empty()) {
      side->first = digest;
    } else if (digest != side->first) {
      side->varied = true;
    } else if (!side->varied) {
      return true;
    }
    double bits = 0;
    for (const auto& [of_class, count] : batch) {
      const auto n = static_cast<double>(count);
      bits += n * std::log2(static_cast<double>(labels) / n);
    }
    if (bits < kNoChanceBits) return false;
    if (side->known.contains(digest)) return true;
    if (side->known.size() < kKnownBatches) side->known.insert(digest);
    return false;
  }

  struct Extremes {
    std::size_t classes = 0;
    std::size_t rarest = 0;
    std::size_t most = 0;
    double ratio = 1;
    /// What it is beyond doubt: two standard deviations of each count; 1: nothing is.
    double least_ratio = 1;
  };
  static Extremes ExtremesOf(const Side& side) {
    Extremes out;
    for (std::size_t c = 0; c < side.counts.size(); ++c) {
      const std::uint64_t labels = side.counts[c].labels;
      if (labels == 0) continue;
      if (out.classes == 0 || labels < side.counts[out.rarest].labels) out.rarest = c;
      if (out.classes == 0 || labels > side.counts[out.most].labels) out.most = c;
      ++out.classes;
    }
    if (out.classes < 2) return out;
    const auto most = static_cast<double>(side.counts[out.most].labels);
    const Came& rare = side.counts[out.rarest];
    const auto rarest = static_cast<double>(rare.labels);
    out.ratio = most / rarest;
    // Samples in the order of their classes: what came so far says little of what comes.
    if (rare.Dispersion(side.batches) > kMixed && rare.turns < kTurns) return out;
    out.least_ratio = (most - 2 * std::sqrt(most)) / (rarest + 2 * std::sqrt(rarest) + 1);
    return out;
  }

  /// True where a window is full.
  bool Compare(Side* side, const std::vector<std::int32_t>& labels, const LabelBatch& batch) {
    const Samples& predictions = *batch.predictions;
    if (argmax_ && predictions.per_sample() * batch.labels->count() <= labels.size()) return false;
    const auto predicted = PredictedClasses(predictions, labels, batch.labels->count());
    if (!predicted) return false;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] == kNoClass) continue;
      ++At(&side->seen, labels[i]);
      ++side->window;
      if ((*predicted)[i] == labels[i]) continue;
      ++At(&side->wrong, labels[i]);
      ++side->window_wrong;
    }
    if (side->window < samples_) return false;
    EndWindow(side);
    return true;
  }

  void EndWindow(Side* side) {
    has_data_ = true;
    side->all_wrong = static_cast<double>(side->window_wrong) / static_cast<double>(side->window);
    side->window = side->window_wrong = 0;
    side->wrong.resize(side->seen.size());
    side->share.resize(std::max(side->share.size(), side->seen.size()), std::nan(""));
    side->behind.resize(side->share.size());
    for (std::size_t c = 0; c < side->seen.size(); ++c) {
      // A rare class is judged once several windows have shown enough of it.
      if (side->seen[c] < kLeastOfClass) continue;
      side->share[c] = static_cast<double>(side->wrong[c]) / static_cast<double>(side->seen[c]);
      const bool behind = side->share[c] > misprediction_ && side->all_wrong <= misprediction_ / 2;
      side->behind[c] = behind ? side->behind[c] + 1 : 0;
      side->seen[c] = side->wrong[c] = 0;
    }
    side->neglects = std::any_of(side->behind.begin(), side->behind.end(),
                                 [&](std::int64_t windows) { return windows >= patience_; });
  }

  void Judge(Process* process, Side* side, const format::TensorRow& row, Reporter* reporter) {
    if (!side->imbalanced && !side->neglects) {
      if (side->open) reporter->Recover(side->incident);
      side->open = false;
      return;
    }
    if (!side->open) {
      processes_.Open(process, std::max<std::int64_t>(0, row.step), row.time_ns);
      side->open = true;
      side->incident = process->incident;
      if (side->evaluation) side->incident.subject += ", evaluation";
    }
    Describe(side);
    side->incident.last_step = std::max(side->incident.first_step, process->last_step);
    side->incident.end_ns = std::max(side->incident.start_ns, row.time_ns);
    reporter->Report(side->incident);
  }

  void Close(Process* process, Reporter* reporter) {
    for (Side& side : process->sides) {
      if (side.open) reporter->Close(side.incident);
      side.open = false;
    }
    process->open = false;
  }

  void Describe(Side* of_side) {
    const Side& side = *of_side;
    Incident& incident = of_side->incident;
    const Extremes extremes = ExtremesOf(side);
    std::vector<std::size_t> behind;
    for (std::size_t c = 0; c < side.behind.size(); ++c) {
      if (side.behind[c] >= patience_) behind.push_back(c);
    }
    // What is not of an evaluation is not always of the training: with XGBoost, whose steps are all
    // TRAIN, it is of the evaluation set where there is one.
    const char* const in = side.evaluation ? " in the evaluation" : "";
    const char* const of = side.evaluation ? " of the evaluation" : "";
    std::string counts;
    if (extremes.classes >= 2) {
      counts = fmt::format("class {} has {} of {} labels{}, class {} has {}", extremes.rarest,
                           side.counts[extremes.rarest].labels, side.labels, of, extremes.most,
                           side.counts[extremes.most].labels);
    }
    if (side.neglects) {
      const std::size_t first = behind.front();
      incident.severity = Severity::kHigh;
      incident.message = fmt::format("{} of {} classes left behind{}", behind.size(),
                                     std::max(extremes.classes, behind.size()), in);
      incident.cause =
          fmt::format("{} % of class {} is mispredicted, of all labels {} %{}.",
                      Plain(100 * (std::isnan(side.share[first]) ? 1 : side.share[first])), first,
                      Plain(100 * side.all_wrong), side.imbalanced ? ": " + counts : std::string());
      incident.advice =
          side.imbalanced ? "Weight the loss by class or sample rare classes more often; judge by "
                            "recall of each class, not by accuracy."
                          : "Look at the labels of this class: its samples may be mislabelled, or "
                            "too much like those of another class.";
    } else {
      // An evaluation may well be as the world is: then only one number must not be trusted.
      incident.severity =
          std::max(incident.severity, side.evaluation ? Severity::kLow : Severity::kMedium);
      incident.message =
          fmt::format("Classes are imbalanced{}: {} to 1", in, Plain(extremes.ratio));
      incident.cause = fmt::format("In the data: {}.", counts);
      incident.advice =
          side.evaluation
              ? "Judge by recall of each class, not by accuracy, which hides the rare ones."
              : "Weight the loss by class or sample rare classes more often, and watch the recall "
                "of the rare ones.";
    }
    // Two standard deviations are already taken off where it opens.
    incident.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["labels"] = side.labels;
    evidence["classes"] = extremes.classes;
    evidence["ratio"] = Rounded(extremes.ratio);
    evidence["of"] = side.evaluation ? "evaluation" : "training";
    nlohmann::ordered_json by_class = nlohmann::ordered_json::object();
    for (std::size_t c = 0; c < side.counts.size() && by_class.size() < kNamed; ++c) {
      if (side.counts[c].labels > 0) by_class[std::to_string(c)] = side.counts[c].labels;
    }
    evidence["counts"] = std::move(by_class);
    if (!side.share.empty()) {
      evidence["mispredicted"] = Rounded(side.all_wrong);
      nlohmann::ordered_json shares = nlohmann::ordered_json::object();
      for (std::size_t c = 0; c < side.share.size() && shares.size() < kNamed; ++c) {
        if (!std::isnan(side.share[c])) shares[std::to_string(c)] = Rounded(side.share[c]);
      }
      evidence["mispredicted_of_class"] = std::move(shares);
    }
    incident.evidence = JsonText(evidence);
  }

  const double imbalance_;
  const double misprediction_;
  const std::uint64_t samples_;
  const bool argmax_;
  const std::int64_t patience_;

  LabelPairs pairs_;
  ClassShares class_shares_;
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kClassImbalanceDesc{
    .name = "ClassImbalance",
    .summary = "Some classes are far rarer than others, or the model leaves one behind.",
    .formula =
        "Labels of training and of evaluation are counted by class c, each apart, negative ones "
        "(padding) left out. The same labels again (digest) count once, where no others have come "
        "or "
        "they hold more than 40 bits: fewer are the same by chance. Each `samples` labels: "
        "imbalanced where max n / min n > threshold_imbalance, over the classes seen, and, the "
        "first time, beyond doubt too: (max n − 2√max n) / (min n + 2√min n + 1) > "
        "threshold_imbalance, and the rarest class is mixed with the others: the variance of its "
        "count in a batch is at most 4 times the mean, or it came anew three times; never of more "
        "than 1000 classes, which are words of a vocabulary. "
        "Predictions of the same step: the class of the largest score, or 1 where a probability is "
        "above 0.5. At the end of each window of `samples` labels with predictions, of the classes "
        "with at least 10 of them since they were judged last: left behind where the mispredicted "
        "share of the class is > "
        "threshold_misprediction while that of all labels is ≤ threshold_misprediction / 2, since "
        "at the begin of a training every class is mispredicted. High where a class was left "
        "behind in patience windows in a row, medium where only counts of the training are "
        "imbalanced, low where counts of evaluations are. Over where neither holds. Where no "
        "values "
        "are captured: of the events `batch.classes`, of at most "
        "1000 classes, at the end of the process. Medium where a class of three or more was left "
        "behind in the last patience windows, its share beyond one standard deviation; low where "
        "counts alone are imbalanced. Costs no time: the result is at stake.",
    .how_to_fix =
        "Weight the loss by class (weight= of CrossEntropyLoss, class_weight of fit, "
        "scale_pos_weight of XGBoost), sample rare classes more often (WeightedRandomSampler), or "
        "collect more of them. Judge by recall and F1 of each class: accuracy hides a rare one.",
    .table_mask = store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kLabelCaptures,
    .family = Family::kModel,
    .example =
        "A classifier of fraud trained on 1,000 transactions of which 20 are fraud: "
        "`CrossEntropyLoss()(model(x), labels)` without weights."};

std::unique_ptr<Rule> MakeClassImbalance(const Parameters& parameters) {
  return std::make_unique<ClassImbalance>(parameters);
}

}  // namespace telltale::rules::class_imbalance
