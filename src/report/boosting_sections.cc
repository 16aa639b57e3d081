// SPDX-License-Identifier: Apache-2.0
#include "report/boosting_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/columns.h"
#include "base/json.h"
#include "base/saturate.h"
#include "report/append.h"
#include "report/svg.h"
#include "report/text.h"

namespace telltale::report {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostModels = 4;
constexpr std::size_t kMostCurves = 12;
constexpr std::size_t kMostFeatures = 20;
constexpr std::size_t kMostClasses = 20;
constexpr int kHalf = 380;
constexpr double kRocSide = 220;

const ordered_json& At(const ordered_json& of, const char* key) {
  static const ordered_json kNothing;
  if (!of.is_object()) return kNothing;
  const auto found = of.find(key);
  return found == of.end() ? kNothing : *found;
}

double Number(const ordered_json& of, const char* key) {
  const ordered_json& value = At(of, key);
  return value.is_number() ? value.get<double>() : std::nan("");
}

std::string Words(const ordered_json& of, const char* key) {
  const ordered_json& value = At(of, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// The numbers of a list; what is none is 0.
std::vector<double> Numbers(const ordered_json& list) {
  std::vector<double> out;
  if (!list.is_array()) return out;
  for (const ordered_json& each : list) out.push_back(each.is_number() ? each.get<double>() : 0);
  return out;
}

std::string Figure(double value) { return Significant(value); }

std::string Count(double value) {
  return std::isfinite(value) ? Thousands(SaturatingCast(value)) : std::string("—");
}

/// Of a share that may not be known.
std::string Share(const ordered_json& of, const char* key) {
  const double value = Number(of, key);
  return std::isfinite(value) ? Percent(value) : std::string("—");
}

void Title(std::string* out, std::string_view title, std::string_view small) {
  Add(out, "<h3 class=\"gap\">{} <small>{}</small></h3>\n", title, Escape(small));
}

void TableHead(std::string* out, std::string_view first,
               const std::vector<std::string_view>& others) {
  Add(out, "<table><thead><tr><th scope=\"col\">{}</th>", first);
  for (const std::string_view other : others) {
    Add(out, "<th scope=\"col\" class=\"r\">{}</th>", other);
  }
  *out += "</tr></thead><tbody>\n";
}

/// {"edges", "counts", "mean", "std"}.
void Histogram(std::string* out, const ordered_json& of, const std::string& sentence) {
  const std::vector<double> edges = Numbers(At(of, "edges"));
  if (edges.size() < 2) return;
  *out += DrawBins(Numbers(At(of, "counts")), Significant(edges.front()), Significant(edges.back()),
                   kHalf, sentence);
  Add(out, "<p class=\"s q\">mean {}, standard deviation {}</p>\n", Significant(Number(of, "mean")),
      Significant(Number(of, "std")));
}

void Labels(std::string* out, const ordered_json& model) {
  const ordered_json& labels = At(model, "label_distribution");
  if (!labels.is_object()) return;
  Title(out, "Labels", fmt::format("{} samples", Count(Number(model, "samples"))));
  const ordered_json& counts = At(labels, "counts");
  if (!counts.is_object()) {
    Histogram(out, labels, "Distribution of the labels.");
    return;
  }
  double all = 0;
  for (const ordered_json& count : counts) all += count.is_number() ? count.get<double>() : 0;
  TableHead(out, "Class", {"samples", "share"});
  std::size_t shown = 0;
  for (const auto& [name, count] : counts.items()) {
    if (++shown > kMostClasses) break;
    const double samples = count.is_number() ? count.get<double>() : 0;
    Add(out, "<tr><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>\n", Escape(name),
        Count(samples), Percent(all > 0 ? samples / all : 0));
  }
  *out += "</tbody></table>\n";
  if (counts.size() > kMostClasses) {
    Add(out, "<p class=\"s q\">{} more classes.</p>\n", counts.size() - kMostClasses);
  }
}

/// One value a step as a line.
std::string Line(const analysis::Columns& values, std::string sentence) {
  LineChart chart;
  chart.series = &values;
  chart.label = Figure;
  chart.x_name = "round";
  chart.zero_based = false;
  chart.cut = true;
  chart.width = kHalf;
  chart.sentence = std::move(sentence);
  return Draw(chart);
}

void Metrics(std::string* out, const ordered_json& model) {
  const ordered_json& curves = At(model, "loss");
  if (!curves.is_array() || curves.empty()) return;
  Title(out, "Metrics", "by round, as the library evaluates them");
  *out += "<div class=\"two\">\n";
  std::size_t shown = 0;
  for (const ordered_json& curve : curves) {
    if (++shown > kMostCurves) break;
    const std::vector<double> steps = Numbers(At(curve, "steps"));
    const std::vector<double> values = Numbers(At(curve, "values"));
    analysis::Columns columns;
    for (std::size_t i = 0; i < std::min(steps.size(), values.size()); ++i) {
      columns.Add(SaturatingCast(steps[i]), values[i]);
    }
    if (values.empty() || columns.columns().empty()) continue;
    const std::string name = Words(curve, "name");
    Add(out, "<div><p class=\"s\">{}: {} at the last round</p>{}</div>\n", Escape(name),
        Significant(values.back(), 4),
        Line(columns, fmt::format("{} from {} to {}.", name, Significant(values.front()),
                                  Significant(values.back()))));
  }
  *out += "</div>\n";
}

void Importances(std::string* out, const ordered_json& model) {
  const ordered_json& kinds = At(model, "feature_importance");
  if (!kinds.is_object()) return;
  for (const auto& [kind, importance] : kinds.items()) {
    const ordered_json& features = At(importance, "features");
    if (!features.is_array()) continue;
    Title(out, "Feature importance",
          fmt::format("{}, share of all {} features", kind, Count(Number(importance, "of"))));
    *out += "<table><tbody>\n";
    std::size_t shown = 0;
    for (const ordered_json& feature : features) {
      if (++shown > kMostFeatures) break;
      const double share = Number(feature, "share");
      Add(out,
          "<tr><td>{}</td><td><span class=\"bar\"><i style=\"width:{:.1f}%\"></i></span></td>"
          "<td class=\"r\">{}</td></tr>\n",
          Escape(Words(feature, "feature")),
          std::isfinite(share) ? 100 * std::clamp(share, 0.0, 1.0) : 0, Share(feature, "share"));
    }
    *out += "</tbody></table>\n";
  }
}

void Matrix(std::string* out, const ordered_json& model) {
  const ordered_json& counts = At(At(model, "confusion_matrix"), "counts");
  if (!counts.is_array() || counts.empty()) return;
  Title(out, "Confusion matrix", "a row a label, a column what was predicted");
  const std::size_t classes = std::min(counts.size(), kMostClasses);
  *out += "<table><thead><tr><th scope=\"col\">label</th>";
  for (std::size_t c = 0; c < classes; ++c) Add(out, "<th scope=\"col\" class=\"r\">{}</th>", c);
  *out += "</tr></thead><tbody>\n";
  for (std::size_t label = 0; label < classes; ++label) {
    const std::vector<double> row = Numbers(counts[label]);
    Add(out, "<tr><td>{}</td>", label);
    for (std::size_t c = 0; c < std::min(classes, row.size()); ++c) {
      const bool right = label == c;
      Add(out, "<td class=\"r\">{}{}{}</td>", right ? "<b>" : "", Count(row[c]),
          right ? "</b>" : "");
    }
    *out += "</tr>\n";
  }
  *out += "</tbody></table>\n";
  if (counts.size() > classes) {
    Add(out, "<p class=\"s q\">The first {} of {} classes.</p>\n", classes, counts.size());
  }
}

void ScoreRow(std::string* out, std::string_view name, const ordered_json& scores) {
  Add(out, "<tr><td>{}</td>", Escape(name));
  for (const char* key : {"precision", "recall", "f1"}) {
    Add(out, "<td class=\"r\">{}</td>", Share(scores, key));
  }
  Add(out, "<td class=\"r\">{}</td></tr>\n",
      At(scores, "support").is_number() ? Count(Number(scores, "support")) : std::string());
}

void Evaluation(std::string* out, const ordered_json& model) {
  const ordered_json& scores = At(model, "evaluation");
  if (!scores.is_object()) return;
  Title(out, "Evaluation", fmt::format("accuracy {}", Share(scores, "accuracy")));
  TableHead(out, "Class", {"precision", "recall", "F1", "samples"});
  if (const ordered_json& classes = At(scores, "classes"); classes.is_array()) {
    for (std::size_t i = 0; i < std::min(classes.size(), kMostClasses); ++i) {
      const ordered_json& name = At(classes[i], "class");
      ScoreRow(out, name.is_string() ? name.get<std::string>() : JsonText(name), classes[i]);
    }
  }
  for (const char* mean : {"micro", "macro", "weighted"}) {
    if (At(scores, mean).is_object()) ScoreRow(out, fmt::format("{} mean", mean), At(scores, mean));
  }
  *out += "</tbody></table>\n";
  const ordered_json& by_step = At(model, "accuracy_by_step");
  if (!by_step.is_array() || by_step.size() < 2) return;
  analysis::Columns columns;
  for (const ordered_json& point : by_step) {
    const double step = Number(point, "step");
    const double accuracy = Number(point, "accuracy");
    if (std::isfinite(step) && std::isfinite(accuracy)) {
      columns.Add(SaturatingCast(step), accuracy);
    }
  }
  if (columns.columns().empty()) return;
  Title(out, "Accuracy", "by round");
  *out += Line(columns, fmt::format("Accuracy, {} at the last round.", Share(scores, "accuracy")));
}

void Roc(std::string* out, const ordered_json& model) {
  const ordered_json& roc = At(model, "roc");
  const std::vector<double> x = Numbers(At(roc, "false_positive_rate"));
  const std::vector<double> y = Numbers(At(roc, "true_positive_rate"));
  if (x.empty() || x.size() != y.size()) return;
  const std::string area = Significant(Number(roc, "auc"));
  Title(out, "ROC curve", fmt::format("area {}; across false positives, up true ones", area));
  Add(out,
      "<svg viewBox=\"0 0 {0} {0}\" width=\"{0}\" height=\"{0}\" role=\"img\" "
      "aria-label=\"ROC curve, area {1}.\"><path d=\"M0 {0}L{0} 0\" stroke=\"var(--line)\" "
      "fill=\"none\"/><polyline fill=\"none\" stroke=\"var(--p-fwd)\" stroke-width=\"1.5\" "
      "points=\"",
      kRocSide, area);
  for (std::size_t i = 0; i < x.size(); ++i) {
    Add(out, "{:.1f},{:.1f} ", std::clamp(x[i], 0.0, 1.0) * kRocSide,
        (1 - std::clamp(y[i], 0.0, 1.0)) * kRocSide);
  }
  *out += "\"/></svg>\n";
}

void Residuals(std::string* out, const ordered_json& model) {
  const ordered_json& residuals = At(model, "residuals");
  if (residuals.is_object()) {
    Title(out, "Residuals", "label less prediction");
    Histogram(out, residuals, "Distribution of the residuals.");
  }
  const ordered_json& errors = At(model, "error_by_label");
  if (!errors.is_array() || errors.empty()) return;
  Title(out, "Error by label", "where the labels lie, how far the predictions are off");
  TableHead(out, "Label", {"samples", "mean |error|"});
  for (const ordered_json& range : errors) {
    Add(out, "<tr><td>{} to {}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>\n",
        Significant(Number(range, "from")), Significant(Number(range, "to")),
        Count(Number(range, "count")), Significant(Number(range, "mean_absolute_error")));
  }
  *out += "</tbody></table>\n";
}

std::string OneModel(const ordered_json& model, bool several) {
  std::string small = Words(model, "objective");
  if (several) {
    small += fmt::format("{}rank {}, pid {}", small.empty() ? "" : "; ",
                         JsonText(At(model, "rank")), JsonText(At(model, "pid")));
  }
  std::string out;
  Add(&out, "<div class=\"gap\"><h3>Boosted model <small>{}</small></h3>\n", Escape(small));
  Labels(&out, model);
  Metrics(&out, model);
  Importances(&out, model);
  Matrix(&out, model);
  Evaluation(&out, model);
  Roc(&out, model);
  Residuals(&out, model);
  return out + "</div>\n";
}

}  // namespace

std::string BoostingSections(const RunData& data) {
  std::string out;
  for (const rules::RuleState& state : data.replay.rules) {
    const std::string& is = state.rule.empty() ? state.name : state.rule;
    if (is != "CreateXgboostReport" || state.summary.empty()) continue;
    const ordered_json summary = ParseOrderedJson(state.summary);
    const ordered_json& models = At(summary, "models");
    if (!models.is_array()) continue;
    // The newest are the last.
    const std::size_t from = models.size() > kMostModels ? models.size() - kMostModels : 0;
    const bool several = models.size() > 1;
    for (std::size_t i = from; i < models.size(); ++i) out += OneModel(models[i], several);
    if (from > 0) {
      Add(&out, "<p class=\"s q\">{} more in <code>telltale check --json</code>.</p>\n", from);
    }
  }
  if (out.empty()) return out;
  return "<div id=\"boosting\">\n" + out + "</div>\n";
}

}  // namespace telltale::report
