// SPDX-License-Identifier: Apache-2.0
// FeatureImportanceOverweight: a few features decide nearly alone what a boosted model says.
//
// SageMaker Debugger's rule of this name fires where the model has no more features than it adds
// up, and in the first rounds, whose few trees cannot use more. Here the features must be more, and
// several captures in a row must say so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::feature_importance_overweight {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 0.8, "", "Share of the importance of all, above which the first are too heavy."},
    {"nfeatures", 3, "features", "How many of the most important ones are added up."},
    {"tensor_regex", 0, "", "Importances are tensors with this in their names.",
     ".*feature_importance/weight"},
    {"patience", 3, "captures", "Captures in a row before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {{"feature_importance", "values", 5}};

constexpr std::size_t kMostFeatures = 100'000;  ///< Of a vector of importances.
constexpr std::size_t kNamed = 5;               ///< Features that the evidence names, at least.

class FeatureImportanceOverweight final : public Rule {
 public:
  explicit FeatureImportanceOverweight(const Parameters& p)
      : threshold_(p.Get("threshold")),
        top_(static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("nfeatures"), 1, 1000))),
        pattern_(p.Text("tensor_regex")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))) {}

  void Bind(const RuleContext& context) override { values_ = context.values; }

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kTensors || !pattern_.Matches(series.name)) return false;
    // feature_importance/weight/f3 is of feature f3; what precedes says the model (a fold of cv).
    Place place;
    const auto kind = series.name.find("feature_importance/");
    if (kind != std::string::npos) {
      place.model = series.name.substr(0, kind);
      const auto slash = series.name.find('/', kind + 19);
      if (slash != std::string::npos) place.feature = series.name.substr(slash + 1);
    } else {
      place.feature = series.name;
    }
    if (places_.size() <= series.id) places_.resize(series.id + 1);
    places_[series.id] = std::move(place);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      } else if (event->kind == "boosting.start") {
        Process* process =
            processes_.Find(*event, writer_, [&](Process* former) { Close(former, reporter); });
        if (process == nullptr) return;
        // Another training of the same process has another model.
        End(process, reporter);
        process->models.clear();
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Place {
    std::string model, feature;  ///< Empty feature: a vector of all of them.
  };
  using Importance = std::pair<double, std::string>;

  /// One capture of one model, as it comes in.
  struct Capture {
    std::int64_t step = -1;
    std::int64_t ns = 0;
    std::vector<Importance> features;
  };

  struct Model {
    Capture capture;
    std::int64_t bad_in_row = 0;
    std::int64_t first_step = -1;  ///< Of those in a row.
    std::int64_t first_ns = 0;
    double share = 0;
    std::size_t features = 0;
    std::vector<Importance> top;
  };

  struct Process : TrainingProcess {
    std::map<std::string, Model> models;  ///< By fold; "" where there is one alone.
  };

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    if (record.series >= places_.size()) return;
    const Place& place = places_[record.series];
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    Model& model = process->models[place.model];
    if (row.step != model.capture.step) {
      EndCapture(process, &model, reporter);
      model.capture.step = row.step;
      model.capture.ns = row.time_ns;
    }
    const auto read = ReadSamples(record, row, values_, kMostFeatures);
    if (!read) return;
    // Of a linear model with several classes each has its importances; they are added up.
    const bool vector = place.feature.empty();
    double sum = 0;
    for (std::size_t i = 0; i < read->elements.size(); ++i) {
      const double value = std::abs(read->elements[i]);
      if (!std::isfinite(value)) return;
      if (vector) model.capture.features.emplace_back(value, fmt::format("#{}", i));
      sum += value;
    }
    if (!vector) model.capture.features.emplace_back(sum, place.feature);
  }

  /// All importances of one step are there.
  void EndCapture(Process* process, Model* model, Reporter* reporter) {
    Capture capture = std::exchange(model->capture, {});
    double sum = 0;
    for (const Importance& feature : capture.features) sum += feature.first;
    if (capture.features.empty() || sum <= 0) return;
    has_data_ = true;
    process->last_step = std::max(process->last_step, capture.step);
    std::sort(capture.features.begin(), capture.features.end(), std::greater<>());
    double top = 0;
    const std::size_t added = std::min(top_, capture.features.size());
    for (std::size_t i = 0; i < added; ++i) top += capture.features[i].first;
    const bool bad = capture.features.size() > top_ && top / sum > threshold_;
    if (bad && model->bad_in_row == 0) {
      model->first_step = capture.step;
      model->first_ns = capture.ns;
    }
    model->bad_in_row = bad ? model->bad_in_row + 1 : 0;
    model->share = top / sum;
    model->features = capture.features.size();
    capture.features.resize(std::min(capture.features.size(), std::max(top_, kNamed)));
    for (Importance& feature : capture.features) feature.first /= sum;
    model->top = std::move(capture.features);
    Judge(process, capture.ns, reporter);
  }

  void Judge(Process* process, std::int64_t ns, Reporter* reporter) {
    const Model* worst = nullptr;
    for (const auto& [name, model] : process->models) {
      if (model.bad_in_row < patience_) continue;
      if (worst == nullptr || model.share > worst->share) worst = &model;
    }
    if (worst == nullptr) {
      if (process->open) reporter->Recover(process->incident);
      process->open = false;
      return;
    }
    if (!process->open) {
      processes_.Open(process, std::max<std::int64_t>(0, worst->first_step), worst->first_ns);
    }
    Describe(process, *worst, ns);
    reporter->Report(process->incident);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    for (auto& [name, model] : process->models) EndCapture(process, &model, reporter);
    Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process, const Model& model, std::int64_t ns) const {
    Incident& incident = process->incident;
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, ns);
    incident.severity = Severity::kMedium;
    // Where one feature alone is over the threshold, the others add nothing.
    const double first = model.top.front().first;
    incident.message =
        top_ == 1 || first > threshold_
            ? fmt::format("One feature has {} % of the importance", Plain(100 * first))
            : fmt::format("{} features have {} % of the importance", top_,
                          Plain(100 * model.share));
    incident.cause =
        fmt::format("{} alone has {} % of the importance of {} features.", model.top.front().second,
                    Plain(100 * model.top.front().first), model.features);
    incident.advice = fmt::format(
        "Look whether {} knows the answer (a leak: an id, a date, what is only known afterwards). "
        "If it does not: colsample_bytree below 1, and train once without it.",
        model.top.front().second);
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["share"] = Rounded(model.share);
    evidence["features"] = model.features;
    evidence["captures"] = model.bad_in_row;
    nlohmann::ordered_json importance = nlohmann::ordered_json::object();
    for (const auto& [value, name] : model.top) importance[name] = Rounded(value);
    evidence["importance"] = std::move(importance);
    incident.evidence = JsonText(evidence);
  }

  const double threshold_;
  const std::size_t top_;
  const TensorPattern pattern_;
  const std::int64_t patience_;

  TensorValues* values_ = nullptr;
  std::vector<Place> places_;  ///< By series.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kFeatureImportanceOverweightDesc{
    .name = "FeatureImportanceOverweight",
    .summary = "A few features have nearly all of the importance.",
    .formula =
        "Of each capture of the importances that tensor_regex names, one number a feature: share = "
        "Σ of the nfeatures largest / Σ of all. Bad where share > threshold and there are more "
        "than nfeatures features; what no tree uses counts as 0. Medium after patience captures in "
        "a row (the first trees can use few features only), over after one that is not bad. With "
        "cross-validation the worst fold counts. Costs no time: the result is at stake.",
    .how_to_fix =
        "Look whether the first feature leaks the answer. Else let trees see a part of the "
        "features only (colsample_bytree, colsample_bynode), regularize (lambda, gamma), and "
        "compare with a training without that feature.",
    .table_mask =
        store::MaskOf(format::TableId::kTensors) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kTree,
    .by_default = false,
    .example = "A model of who leaves that is given the date on which the contract ended."};

std::unique_ptr<Rule> MakeFeatureImportanceOverweight(const Parameters& parameters) {
  return std::make_unique<FeatureImportanceOverweight>(parameters);
}

}  // namespace telltale::rules::feature_importance_overweight
