// SPDX-License-Identifier: Apache-2.0
// What is wrong with a boosted model.
#include "rules/builtin/boosted_verdicts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/numbers.h"

namespace telltale::rules::boosted_model {
namespace {

using nlohmann::json;

// LeakOf.
constexpr double kAlone = 0.95;        ///< Share of the gain.
constexpr double kAllRight = 0.99;     ///< Share of the rows that is right,
constexpr double kMostCommon = 0.9;    ///< where no class has more than this.
constexpr std::int64_t kFeatures = 4;  ///< Of fewer one may decide alone.
constexpr std::int64_t kLeastRows = 50;
// DeepTreesOf.
constexpr double kRowsALeaf = 4;
constexpr double kFewShare = 0.4;
constexpr double kGap = 2;
// ConfusedPairOf.
constexpr double kSwapped = 0.35;
constexpr double kSwappedForSure = 0.25;
constexpr double kOthersRight = 0.8;
constexpr std::int64_t kRowsOfPair = 30;
constexpr std::int64_t kRowsOfEach = 10;
// RareClassesOf.
constexpr std::int64_t kFewOfClass = 20;
constexpr double kRare = 0.1;  ///< Of the median of all classes.

const json* ObjectIn(const json& data, const char* name) {
  const auto found = data.find(name);
  return found != data.end() && found->is_object() ? &*found : nullptr;
}

/// The rows of a list of lists of `size` numbers; others are left out.
std::vector<std::vector<std::int64_t>> RowsIn(const json& data, const char* name,
                                              std::size_t size) {
  std::vector<std::vector<std::int64_t>> rows;
  const auto found = data.find(name);
  if (found == data.end() || !found->is_array()) return rows;
  for (const json& row : *found) {
    if (!row.is_array() || row.size() != size) continue;
    std::vector<std::int64_t> numbers;
    for (const json& number : row) {
      if (number.is_number_integer()) numbers.push_back(CountOf(number));
    }
    if (numbers.size() == size) rows.push_back(std::move(numbers));
  }
  return rows;
}

double Share(std::int64_t part, std::int64_t all) {
  return all <= 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

void ReadEvaluation(const json& data, Model* model) {
  Model::Evaluation out;
  out.set = TextIn(data, "set");
  out.of_training = TextIn(data, "of") != "evaluation";
  out.rows = CountIn(data, "rows");
  out.right = CountIn(data, "right");
  out.classes = CountIn(data, "classes");
  out.most = CountIn(data, "most");
  for (const auto& row : RowsIn(data, "by_class", 3)) {
    out.by_class.push_back({row[0], row[1], row[2]});
  }
  for (const auto& row : RowsIn(data, "pairs", 6)) {
    out.pairs.push_back({row[0], row[1], row[2], row[3], row[4], row[5]});
  }
  if (out.rows > 0) model->evaluation = std::move(out);
}

void ReadImportance(const json& data, Model* model) {
  Model::Importance out;
  out.features = CountIn(data, "features");
  const auto top = data.find("top");
  if (top == data.end() || !top->is_array()) return;
  for (const json& row : *top) {
    if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !row[1].is_number()) continue;
    out.top.emplace_back(row[0].get<std::string>(), row[1].get<double>());
  }
  if (!out.top.empty()) model->importance = std::move(out);
}

/// "evaluation set 'validation'", "training data".
std::string SetText(const Model::Evaluation& evaluation) {
  return evaluation.of_training ? std::string("training data")
                                : fmt::format("evaluation set '{}'", evaluation.set);
}

}  // namespace

std::optional<Model> ModelOf(std::string_view data) {
  const json event = ParseJson(data);
  if (!event.is_object()) return std::nullopt;
  Model model;
  model.training = CountIn(event, "training");
  model.rounds = CountIn(event, "rounds");
  model.final = FlagIn(event, "final");
  if (const json* part = ObjectIn(event, "losses"); part && part->contains("train")) {
    model.losses = Model::Losses{NumberIn(*part, "train"), NumberIn(*part, "validation")};
  }
  if (const json* part = ObjectIn(event, "importance")) ReadImportance(*part, &model);
  if (const json* part = ObjectIn(event, "labels")) {
    Model::Labels labels;
    labels.rows = CountIn(*part, "rows");
    labels.classes = CountIn(*part, "classes");
    labels.median = CountIn(*part, "median");
    labels.weighted = FlagIn(*part, "weighted");
    for (const auto& row : RowsIn(*part, "counts", 2)) labels.counts.push_back({row[0], row[1], 0});
    model.labels = std::move(labels);
  }
  if (const json* part = ObjectIn(event, "evaluation")) ReadEvaluation(*part, &model);
  if (const json* part = ObjectIn(event, "trees")) {
    Model::Trees trees;
    trees.max_depth = CountIn(*part, "max_depth");
    trees.rows = CountIn(*part, "rows");
    trees.leaves = CountIn(*part, "leaves");
    trees.few = CountIn(*part, "few");
    trees.few_rows = CountIn(*part, "few_rows");
    trees.deepest = CountIn(*part, "deepest");
    if (part->contains("cut_at")) {
      trees.cut_at = CountIn(*part, "cut_at");
      trees.loss = NumberIn(*part, "loss");
      trees.cut_loss = NumberIn(*part, "cut_loss");
    }
    model.trees = trees;
  }
  return model;
}

Verdict LeakOf(const Model& model) {
  if (!model.importance || !model.evaluation) return std::nullopt;
  const Model::Evaluation& seen = *model.evaluation;
  const auto& [feature, share] = model.importance->top.front();
  const double right = Share(seen.right, seen.rows);
  if (model.importance->features < kFeatures || share < kAlone || seen.rows < kLeastRows ||
      right < kAllRight || Share(seen.most, seen.rows) > kMostCommon) {
    return std::nullopt;
  }
  Incident out;
  out.severity = Severity::kMedium;
  out.message = fmt::format(
      "The feature {} alone decides the predictions: it may contain the target (a leak)", feature);
  out.cause = fmt::format(
      "{} has {} % of the importance (total gain) of {} features, and {} of {} rows of the {} are "
      "predicted right, after {} rounds.",
      feature, Plain(100 * share), model.importance->features, seen.right, seen.rows, SetText(seen),
      model.rounds);
  out.advice = fmt::format(
      "Check whether {} is known at the time of prediction. If it is computed from the label, "
      "recorded after the event, or an id that goes with the class, remove it and train again.",
      feature);
  out.confidence = 0.9;
  nlohmann::ordered_json evidence;
  nlohmann::ordered_json importance = nlohmann::ordered_json::object();
  for (const auto& [name, value] : model.importance->top) importance[name] = Rounded(value);
  evidence["share"] = Rounded(share);
  evidence["features"] = model.importance->features;
  evidence["importance"] = std::move(importance);
  evidence["rows"] = seen.rows;
  evidence["right"] = seen.right;
  evidence["of"] = seen.of_training ? "training" : "evaluation";
  out.evidence = JsonText(evidence);
  return out;
}

Verdict DeepTreesOf(const Model& model) {
  if (!model.trees || !model.losses || !model.final) return std::nullopt;
  const Model::Trees& trees = *model.trees;
  if (trees.max_depth < 1 || trees.max_depth > 60 || trees.cut_at < 0) return std::nullopt;
  const double leaves = std::exp2(static_cast<double>(trees.max_depth));
  const bool unfilled = static_cast<double>(trees.rows) < kRowsALeaf * leaves;
  const bool single = Share(trees.few, trees.leaves) >= kFewShare;
  const double training = model.losses->training;
  const bool gap = training > 0 && model.losses->validation > kGap * training;
  const bool useless = trees.cut_loss <= trees.loss;
  if (!unfilled || !single || !gap || !useless) return std::nullopt;
  Incident out;
  out.severity = Severity::kMedium;
  out.message =
      fmt::format("Trees are too deep for {} rows: max_depth is {}", trees.rows, trees.max_depth);
  out.cause = fmt::format(
      "max_depth={} allows {} leaves for {} rows: {} of {} leaves of the first round have {} rows "
      "or fewer. The validation loss is {}, the training loss {}; with the same trees cut at depth "
      "{} the validation loss is {}: the deeper splits learn single rows by heart.",
      trees.max_depth, leaves, trees.rows, trees.few, trees.leaves, trees.few_rows,
      Figure(model.losses->validation), Figure(training), trees.cut_at, Figure(trees.cut_loss));
  out.advice = fmt::format(
      "Lower max_depth to {} or less (3 to 6 is usual), or raise min_child_weight; compare the "
      "validation loss.",
      trees.cut_at);
  out.confidence = 0.8;
  nlohmann::ordered_json evidence;
  evidence["max_depth"] = trees.max_depth;
  evidence["rows"] = trees.rows;
  evidence["leaves"] = trees.leaves;
  evidence["leaves_of_few_rows"] = trees.few;
  evidence["deepest"] = trees.deepest;
  evidence["cut_at"] = trees.cut_at;
  evidence["loss"] = Rounded(trees.loss);
  evidence["cut_loss"] = Rounded(trees.cut_loss);
  out.evidence = JsonText(evidence);
  return out;
}

Verdict ConfusedPairOf(const Model& model) {
  if (!model.evaluation || model.evaluation->of_training || model.evaluation->classes < 3) {
    return std::nullopt;
  }
  const Model::Evaluation& seen = *model.evaluation;
  for (const Model::Pair& pair : seen.pairs) {
    const std::int64_t swapped = pair.a_as_b + pair.b_as_a;
    const std::int64_t both = swapped + pair.a_as_a + pair.b_as_b;
    if (both < kRowsOfPair ||
        std::min(pair.a_as_a + pair.a_as_b, pair.b_as_a + pair.b_as_b) < kRowsOfEach) {
      continue;
    }
    const double share = Share(swapped, both);
    const double error = std::sqrt(share * (1 - share) / static_cast<double>(both));
    const double others = Share(seen.right - pair.a_as_a - pair.b_as_b, seen.rows - both);
    if (share < kSwapped || share - 2 * error < kSwappedForSure || others < kOthersRight) continue;
    Incident out;
    out.severity = Severity::kMedium;
    out.message = fmt::format("Classes {} and {} are taken for each other", pair.a, pair.b);
    out.cause = fmt::format(
        "In the {}, {} of {} rows of the classes {} and {} are predicted as the other one ({} as "
        "{}, {} as {}), while {} % of the other rows are predicted right.",
        SetText(seen), swapped, both, pair.a, pair.b, pair.a_as_b, pair.b, pair.b_as_a, pair.a,
        Plain(100 * others));
    out.advice =
        "Look at rows of these two classes: often their labels were mixed up. If the labels are "
        "right, the features do not tell the two classes apart: add one that does, or merge the "
        "classes.";
    out.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["classes"] = {pair.a, pair.b};
    evidence["rows"] = both;
    evidence["swapped"] = swapped;
    evidence["others_right"] = Rounded(others);
    evidence["of"] = "evaluation";
    out.evidence = JsonText(evidence);
    return out;
  }
  return std::nullopt;
}

Verdict RareClassesOf(const Model& model) {
  if (!model.labels || model.labels->weighted || model.labels->classes < 2) return std::nullopt;
  const Model::Labels& labels = *model.labels;
  std::vector<std::int64_t> rare;
  std::int64_t fewest = kFewOfClass;
  for (const Model::Class& one : labels.counts) {
    if (one.rows < 1 || one.rows >= kFewOfClass ||
        static_cast<double>(one.rows) > kRare * static_cast<double>(labels.median)) {
      continue;
    }
    rare.push_back(one.index);
    fewest = std::min(fewest, one.rows);
  }
  if (rare.empty()) return std::nullopt;
  std::sort(rare.begin(), rare.end());
  const bool several = rare.size() > 1;
  Incident out;
  out.severity = Severity::kMedium;
  out.message = fmt::format("Class imbalance: {} {} {} too few rows", several ? "classes" : "class",
                            fmt::join(rare, ", "), several ? "have" : "has");
  nlohmann::ordered_json counts = nlohmann::ordered_json::object();
  std::string each;
  for (const std::int64_t index : rare) {
    const auto found = std::find_if(labels.counts.begin(), labels.counts.end(),
                                    [&](const Model::Class& one) { return one.index == index; });
    each += fmt::format("{}class {} has {}", each.empty() ? "" : ", ", index, found->rows);
    counts[std::to_string(index)] = found->rows;
  }
  out.cause =
      fmt::format("Of {} rows of the training data, {}; half of the {} classes have {} or more.",
                  labels.rows, each, labels.classes, labels.median);
  if (model.evaluation) {
    for (const Model::Class& one : model.evaluation->by_class) {
      if (std::find(rare.begin(), rare.end(), one.index) == rare.end()) continue;
      out.cause += fmt::format(" In the {}, {} of {} rows of class {} are predicted right.",
                               SetText(*model.evaluation), one.right, one.rows, one.index);
    }
  }
  out.advice =
      "Collect more rows of the rare classes or leave the classes out; weight them (weight= of "
      "DMatrix, sample_weight of fit) and judge by the recall of each class, not by accuracy.";
  out.confidence = 0.95;
  nlohmann::ordered_json evidence;
  evidence["rows"] = labels.rows;
  evidence["classes"] = labels.classes;
  evidence["median"] = labels.median;
  evidence["counts"] = std::move(counts);
  evidence["of"] = "training";
  out.evidence = JsonText(evidence);
  return out;
}

}  // namespace telltale::rules::boosted_model
