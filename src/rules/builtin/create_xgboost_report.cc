// SPDX-License-Identifier: Apache-2.0
// CreateXgboostReport: what a boosted model has learned and how well, for the report. It never
// fires.
//
// Each part is there where what it needs was recorded: metrics always, predictions, labels and
// importances where the plan takes them. Of a training the newest capture is shown, and of what
// changes over the rounds a curve.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/boosting_report.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::create_xgboost_report {
namespace {

using nlohmann::ordered_json;

constexpr CaptureNeed kCaptures[] = {
    {"feature_importance", "values", 5}, {"predictions", "values", 5}, {"labels", "values", 5}};

constexpr std::size_t kMostReports = 16;  ///< Processes; of more the newest.
constexpr std::size_t kMostCurves = 64;   ///< Metrics of a process.
constexpr std::size_t kMostPoints = 512;  ///< Of a curve; when full, every second one goes.
constexpr std::size_t kMostNamed = 50;    ///< Features of a kind of importance.
constexpr std::size_t kClassesOfCurve = 32;
constexpr std::size_t kBins = 20;
constexpr std::size_t kErrorBins = 10;
constexpr std::size_t kMostElements = std::size_t{1} << 17U;  ///< Of a vector of importances.
constexpr std::size_t kMostLabels = 50;  ///< Different labels of what is still a classifier.

/// A value for each of many steps, thinned evenly.
template <class T>
class Curve {
 public:
  void Add(std::int64_t step, T value) {
    if (count_++ % stride_ != 0) {
      last_ = {step, std::move(value)};
      return;
    }
    last_.reset();
    points_.emplace_back(step, std::move(value));
    if (points_.size() < kMostPoints) return;
    last_ = points_.back();  // It is not one of those that stay.
    for (std::size_t i = 1; i < points_.size() / 2; ++i) points_[i] = std::move(points_[2 * i]);
    points_.resize(points_.size() / 2);
    stride_ *= 2;
  }
  bool empty() const { return points_.empty(); }
  /// The newest is always the last of them.
  template <class F>
  void ForEach(F&& visit) const {
    for (const auto& [step, value] : points_) visit(step, value);
    if (last_) visit(last_->first, last_->second);
  }

 private:
  std::vector<std::pair<std::int64_t, T>> points_;
  std::optional<std::pair<std::int64_t, T>> last_;
  std::uint64_t count_ = 0;
  std::uint64_t stride_ = 1;
};

struct Accuracy {
  double all = 0;
  std::vector<double> by_class;
};

class CreateXgboostReport final : public Rule {
 public:
  explicit CreateXgboostReport(const Parameters&)
      : pairs_(LabelPairs::Names{.labels_regex = "^labels$|/labels$",
                                 .predictions_regex = "^predictions$|/predictions$"}) {}

  void Bind(const RuleContext& context) override {
    values_ = context.values;
    pairs_.Bind(context.values);
  }

  bool Wants(const Series& series) override {
    Place place;
    if (series.table == format::TableId::kScalars) {
      if (series.name.find('-') == std::string::npos && series.name != "loss") return false;
      place.kind = Kind::kMetric;
    } else if (series.table == format::TableId::kTensors) {
      if (!PlaceOfImportance(series.name, &place)) {
        if (!pairs_.Wants(series)) return false;
        place.kind = Kind::kPair;
      }
    } else {
      return false;
    }
    place.name = series.name;
    if (places_.size() <= series.id) places_.resize(series.id + 1);
    places_[series.id] = std::move(place);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    static_cast<void>(reporter);
    if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnScalar(record, *scalar);
    } else if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "boosting.start") OnTraining(*event);
    }
  }

  void OnEnd(Reporter* reporter) override { static_cast<void>(reporter); }

  bool has_data() const override {
    return std::any_of(reports_.begin(), reports_.end(),
                       [](const Report& report) { return report.Any(); });
  }

  /// Nothing was boosted here.
  bool applies() const override {
    return std::any_of(reports_.begin(), reports_.end(),
                       [](const Report& report) { return report.boosting; });
  }

  std::string Missing() const override {
    return applies() ? std::string() : "no XGBoost training was seen";
  }

  std::string Summary() const override {
    ordered_json models = ordered_json::array();
    for (const Report& report : reports_) {
      if (report.boosting && report.Any()) models.push_back(report.ToJson());
    }
    if (models.empty()) return {};
    ordered_json out;
    out["kind"] = "xgboost";
    out["models"] = std::move(models);
    return JsonText(out);
  }

 private:
  enum class Kind : std::uint8_t { kNone, kMetric, kImportance, kPair };
  struct Place {
    Kind kind = Kind::kNone;
    std::string name;
    std::string importance, feature;  ///< "weight" and "f0"; of a vector no feature.
  };

  struct Importance {
    std::int64_t step = -1;
    std::vector<std::pair<double, std::string>> features;
  };

  /// Of the newest training of one process.
  struct Report {
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    bool boosting = false;
    ordered_json training;  ///< Data of boosting.start.
    std::string objective;
    std::int64_t last_step = -1;
    std::map<std::string, Curve<double>> curves;
    std::map<std::string, Importance> importances;  ///< By kind.
    Curve<Accuracy> accuracies;
    const LabelBatch* side = nullptr;  ///< Of the first fold.
    ordered_json labels, matrix, scores, roc, residuals, errors;
    std::int64_t judged_step = -1;
    std::size_t judged_samples = 0;

    bool Any() const { return !curves.empty() || !importances.empty() || judged_step >= 0; }
    ordered_json ToJson() const;
  };

  static bool PlaceOfImportance(std::string_view name, Place* place) {
    constexpr std::string_view kPrefix = "feature_importance/";
    const auto at = name.find(kPrefix);
    if (at == std::string_view::npos) return false;
    const std::string_view rest = name.substr(at + kPrefix.size());
    const auto slash = rest.find('/');
    place->kind = Kind::kImportance;
    // Each fold of a cross-validation has its own; shown is what is called first.
    place->importance = std::string(name.substr(0, at)) + std::string(rest.substr(0, slash));
    if (slash != std::string_view::npos) place->feature = rest.substr(slash + 1);
    return true;
  }

  template <class Row>
  Report& ReportOf(const Row& row) {
    for (Report& report : reports_) {
      if (report.rank == row.rank && report.pid == row.pid && report.attempt == row.attempt) {
        return report;
      }
    }
    if (reports_.size() == kMostReports) reports_.pop_front();
    Report& report = reports_.emplace_back();
    report.rank = row.rank;
    report.pid = row.pid;
    report.attempt = row.attempt;
    return report;
  }

  void OnTraining(const format::EventRow& event) {
    Report& of_process = ReportOf(event);
    Report report;
    report.rank = event.rank;
    report.pid = event.pid;
    report.attempt = event.attempt;
    report.boosting = true;
    report.training = ParseOrderedJson(event.data);
    if (!report.training.is_object()) report.training = ordered_json::object();
    const auto parameters = report.training.find("hyperparameters");
    if (parameters != report.training.end() && parameters->is_object()) {
      const auto objective = parameters->find("objective");
      if (objective != parameters->end() && objective->is_string()) {
        report.objective = objective->get<std::string>();
      }
    }
    of_process = std::move(report);
  }

  void OnScalar(const Record& record, const format::ScalarRow& row) {
    if (record.series >= places_.size()) return;
    const std::string& name = places_[record.series].name;
    // Before an event says so only importances show that it is boosting (an imported run).
    Report& report = ReportOf(row);
    if (report.curves.size() >= kMostCurves && !report.curves.contains(name)) return;
    if (std::isfinite(row.value)) report.curves[name].Add(row.step, row.value);
    report.last_step = std::max(report.last_step, row.step);
  }

  void OnTensor(const Record& record, const format::TensorRow& row) {
    if (record.series >= places_.size()) return;
    const Place& place = places_[record.series];
    Report& report = ReportOf(row);
    if (place.kind == Kind::kImportance) {
      report.boosting = true;
      OnImportance(record, row, place, &report);
    } else if (place.kind == Kind::kPair) {
      const LabelPairs::Taken taken = pairs_.Take(record, row);
      if (!taken.both()) return;
      if (report.side == nullptr) report.side = taken.batch;
      if (report.side == taken.batch) Judge(*taken.batch, &report);
    } else {
      return;
    }
    report.last_step = std::max(report.last_step, row.step);
  }

  void OnImportance(const Record& record, const format::TensorRow& row, const Place& place,
                    Report* report) {
    const auto read = ReadSamples(record, row, values_, kMostElements);
    if (!read || !std::all_of(read->elements.begin(), read->elements.end(),
                              [](double value) { return std::isfinite(value); })) {
      return;
    }
    Importance& importance = report->importances[place.importance];
    if (importance.step != row.step) {
      importance.step = row.step;
      importance.features.clear();
    }
    if (!place.feature.empty()) {
      double sum = 0;
      for (const double value : read->elements) sum += std::abs(value);
      importance.features.emplace_back(sum, place.feature);
      return;
    }
    for (std::size_t i = 0; i < read->elements.size(); ++i) {
      importance.features.emplace_back(std::abs(read->elements[i]), fmt::format("#{}", i));
    }
  }

  /// Whether the labels are classes: the objective says it, else the labels do.
  static bool IsClassifier(const Report& report, const std::vector<std::int32_t>& labels) {
    const std::string_view objective = report.objective;
    if (objective.starts_with("binary:") || objective.starts_with("multi:")) return true;
    if (!objective.empty()) return false;
    std::vector<std::int32_t> different = labels;
    std::sort(different.begin(), different.end());
    different.erase(std::unique(different.begin(), different.end()), different.end());
    return different.size() <= kMostLabels;
  }

  static void Judge(const LabelBatch& batch, Report* report) {
    const Samples& labels = *batch.labels;
    const Samples& predictions = *batch.predictions;
    report->judged_step = batch.step;
    report->judged_samples = labels.count();
    const auto classes = ClassesOf(labels);
    if (classes && IsClassifier(*report, *classes)) {
      const auto predicted = PredictedClasses(predictions, *classes, labels.count());
      report->labels = ClassDistribution(*classes);
      if (predicted) JudgeClasses(batch, *classes, *predicted, report);
      return;
    }
    report->labels = Distribution(labels.elements, kBins);
    if (predictions.elements.size() != labels.elements.size()) return;
    // The order of ranking has no residuals.
    if (report->objective.starts_with("rank:")) return;
    std::vector<double> residuals(labels.elements.size());
    for (std::size_t i = 0; i < residuals.size(); ++i) {
      residuals[i] = labels.elements[i] - predictions.elements[i];
    }
    report->residuals = Distribution(residuals, kBins);
    report->errors = ErrorByLabel(labels.elements, predictions.elements, kErrorBins);
  }

  static void JudgeClasses(const LabelBatch& batch, const std::vector<std::int32_t>& classes,
                           const std::vector<std::int32_t>& predicted, Report* report) {
    const ConfusionMatrix matrix(classes, predicted);
    report->matrix = matrix.Counts();
    report->scores = matrix.Scores();
    Accuracy accuracy;
    accuracy.all = matrix.accuracy();
    if (matrix.classes() <= kClassesOfCurve) {
      for (std::size_t c = 0; c < matrix.classes(); ++c) {
        accuracy.by_class.push_back(matrix.recall(c));
      }
    }
    report->accuracies.Add(batch.step, std::move(accuracy));
    report->roc = nullptr;
    if (matrix.classes() > 2) return;
    // One score a sample, or one for each of both classes.
    const std::vector<double>& scores = batch.predictions->elements;
    const std::size_t of_sample = scores.size() / classes.size();
    if (of_sample == 1) {
      report->roc = RocCurve(classes, scores);
    } else if (of_sample == 2) {
      std::vector<double> second(classes.size());
      for (std::size_t i = 0; i < second.size(); ++i) second[i] = scores[2 * i + 1];
      report->roc = RocCurve(classes, second);
    }
  }

  LabelPairs pairs_;
  TensorValues* values_ = nullptr;
  std::vector<Place> places_;  ///< By series.
  std::deque<Report> reports_;
};

ordered_json CreateXgboostReport::Report::ToJson() const {
  ordered_json out;
  out["rank"] = rank;
  out["pid"] = pid;
  out["attempt"] = attempt;
  out["last_step"] = last_step;
  if (!objective.empty()) out["objective"] = objective;
  if (!training.is_null()) out["training"] = training;
  ordered_json losses = ordered_json::array();
  for (const auto& [name, curve] : curves) {
    if (curve.empty()) continue;
    ordered_json steps = ordered_json::array();
    ordered_json figures = ordered_json::array();
    curve.ForEach([&](std::int64_t step, double value) {
      steps.push_back(step);
      figures.push_back(Rounded(value));
    });
    losses.push_back({{"name", name}, {"steps", std::move(steps)}, {"values", std::move(figures)}});
  }
  if (!losses.empty()) out["loss"] = std::move(losses);
  ordered_json kinds = ordered_json::object();
  for (const auto& [kind, importance] : importances) {
    auto features = importance.features;
    double sum = 0;
    for (const auto& feature : features) sum += feature.first;
    std::stable_sort(features.begin(), features.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    ordered_json named = ordered_json::array();
    for (std::size_t i = 0; i < std::min(kMostNamed, features.size()); ++i) {
      const double share = sum > 0 ? features[i].first / sum : 0;
      ordered_json& entry = named.emplace_back(ordered_json::object());
      entry["feature"] = features[i].second;
      entry["share"] = Rounded(share);
    }
    kinds[kind] = {
        {"step", importance.step}, {"of", features.size()}, {"features", std::move(named)}};
  }
  if (!kinds.empty()) out["feature_importance"] = std::move(kinds);
  if (judged_step < 0) return out;
  out["step"] = judged_step;
  out["samples"] = judged_samples;
  const auto put = [&](const char* key, const ordered_json& part) {
    if (!part.is_null()) out[key] = part;
  };
  put("label_distribution", labels);
  put("confusion_matrix", matrix);
  put("evaluation", scores);
  if (!accuracies.empty()) {
    ordered_json curve = ordered_json::array();
    accuracies.ForEach([&](std::int64_t step, const Accuracy& accuracy) {
      ordered_json by_class = ordered_json::array();
      for (const double share : accuracy.by_class) {
        by_class.push_back(std::isnan(share) ? ordered_json(nullptr)
                                             : ordered_json(Rounded(share)));
      }
      curve.push_back(
          {{"step", step}, {"accuracy", Rounded(accuracy.all)}, {"by_class", std::move(by_class)}});
    });
    out["accuracy_by_step"] = std::move(curve);
  }
  put("roc", roc);
  put("residuals", residuals);
  put("error_by_label", errors);
  return out;
}

}  // namespace

const RuleDesc kCreateXgboostReportDesc{
    .name = "CreateXgboostReport",
    .summary = "What a boosted model has learned and how well, for the report; it never fires.",
    .formula =
        "Of the newest training of each process, at the last step of which predictions and labels "
        "were recorded: distribution of the labels; for a classifier (objective binary: or multi:, "
        "or at most 50 different whole labels) the confusion matrix, precision, recall and F1 of "
        "each class and as micro, macro and weighted means, accuracy of all and of each class by "
        "step, and of two classes the ROC curve with its area (trapezoids, equal scores one "
        "point); for a regression residuals = label − prediction in 20 bins and the mean |error| "
        "in 10 ranges of the label. Metrics by step, at most 512 points each, and importances "
        "(weight, gain, cover, total_gain, total_cover) as shares of their sum. With "
        "cross-validation the first fold.",
    .how_to_fix = "Nothing is wrong: look at the report.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = {},
    .captures = kCaptures,
    .family = Family::kTree,
    // Predictions of a large evaluation set at each fifth round cost more than a default may.
    .by_default = false,
    .example = "`telltale run --rule CreateXgboostReport -- python train.py`"};

std::unique_ptr<Rule> MakeCreateXgboostReport(const Parameters& parameters) {
  return std::make_unique<CreateXgboostReport>(parameters);
}

}  // namespace telltale::rules::create_xgboost_report
