// SPDX-License-Identifier: Apache-2.0
// What a report of a boosted model is made of.
#include "rules/builtin/boosting_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "rules/builtin/numbers.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostPoints = 200;

ordered_json Number(double value) {
  return std::isfinite(value) ? ordered_json(Rounded(value)) : ordered_json(nullptr);
}

/// Precision, recall and their harmonic mean.
struct Score {
  double precision = 0;
  double recall = 0;
  double f1() const {
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
  }
};

ordered_json ToJson(const Score& score, double f1) {
  return {
      {"precision", Number(score.precision)}, {"recall", Number(score.recall)}, {"f1", Number(f1)}};
}

double Share(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? std::numeric_limits<double>::quiet_NaN()
                  : static_cast<double>(part) / static_cast<double>(all);
}

/// Bins of equal width over the finite values.
struct Bins {
  double low = 0;
  double width = 0;
  std::size_t count = 1;

  Bins(std::span<const double> values, std::size_t bins) : count(std::max<std::size_t>(1, bins)) {
    double high = -std::numeric_limits<double>::infinity();
    low = std::numeric_limits<double>::infinity();
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    if (low > high) return;
    width = (high - low) / static_cast<double>(count);
  }
  bool empty() const { return !std::isfinite(low); }
  double edge(std::size_t i) const { return low + width * static_cast<double>(i); }
  std::size_t At(double value) const {
    if (!(width > 0) || !std::isfinite(width)) return 0;
    const double at = std::clamp((value - low) / width, 0.0, static_cast<double>(count - 1));
    return static_cast<std::size_t>(at);
  }
};

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::span<const std::int32_t> labels,
                                 std::span<const std::int32_t> predicted) {
  const std::size_t pairs = std::min(labels.size(), predicted.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    if (labels[i] < 0 || predicted[i] < 0) continue;
    const auto label = static_cast<std::size_t>(labels[i]);
    const auto guess = static_cast<std::size_t>(predicted[i]);
    const std::size_t size = std::max(label, guess) + 1;
    if (size > kMostClasses) continue;
    if (size > counts_.size()) {
      counts_.resize(size);
      for (auto& row : counts_) row.resize(size);
    }
    ++counts_[label][guess];
    ++samples_;
  }
}

double ConfusionMatrix::accuracy() const {
  std::uint64_t right = 0;
  for (std::size_t c = 0; c < counts_.size(); ++c) right += counts_[c][c];
  return samples_ == 0 ? 0 : Share(right, samples_);
}

double ConfusionMatrix::recall(std::size_t of_class) const {
  std::uint64_t all = 0;
  for (const std::uint64_t n : counts_[of_class]) all += n;
  return Share(counts_[of_class][of_class], all);
}

ordered_json ConfusionMatrix::Counts() const {
  return {{"classes", counts_.size()}, {"counts", counts_}};
}

ordered_json ConfusionMatrix::Scores() const {
  ordered_json classes = ordered_json::array();
  Score macro;
  Score weighted;
  double macro_f1 = 0;
  double weighted_f1 = 0;
  double present = 0;
  for (std::size_t c = 0; c < counts_.size(); ++c) {
    std::uint64_t support = 0;
    std::uint64_t guessed = 0;
    for (std::size_t other = 0; other < counts_.size(); ++other) {
      support += counts_[c][other];
      guessed += counts_[other][c];
    }
    if (support == 0 && guessed == 0) continue;
    const double precision = Share(counts_[c][c], guessed);
    const double of_class = Share(counts_[c][c], support);
    const Score score{std::isnan(precision) ? 0 : precision, std::isnan(of_class) ? 0 : of_class};
    const double weight = Share(support, samples_);
    ++present;
    macro.precision += score.precision;
    macro.recall += score.recall;
    macro_f1 += score.f1();
    weighted.precision += weight * score.precision;
    weighted.recall += weight * score.recall;
    weighted_f1 += weight * score.f1();
    classes.push_back({{"class", c},
                       {"precision", Number(precision)},
                       {"recall", Number(of_class)},
                       {"f1", Number(score.f1())},
                       {"support", support}});
  }
  if (present > 0) {
    macro.precision /= present;
    macro.recall /= present;
    macro_f1 /= present;
  }
  // Of one label a sample all three micro means are the accuracy.
  const double right = accuracy();
  ordered_json out;
  out["accuracy"] = Number(right);
  out["classes"] = std::move(classes);
  out["micro"] = ToJson({right, right}, right);
  out["macro"] = ToJson(macro, macro_f1);
  out["weighted"] = ToJson(weighted, weighted_f1);
  return out;
}

ordered_json ClassDistribution(std::span<const std::int32_t> labels) {
  std::map<std::int32_t, std::uint64_t> counts;
  for (const std::int32_t label : labels) {
    if (label >= 0) ++counts[label];
  }
  ordered_json by_class = ordered_json::object();
  for (const auto& [label, count] : counts) by_class[std::to_string(label)] = count;
  ordered_json out;
  out["kind"] = "classes";
  out["counts"] = std::move(by_class);
  return out;
}

ordered_json Distribution(std::span<const double> values, std::size_t bins) {
  const Bins range(values, bins);
  if (range.empty()) return nullptr;
  std::vector<std::uint64_t> counts(range.count);
  double sum = 0;
  double n = 0;
  double high = range.low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    ++counts[range.At(value)];
    sum += value;
    high = std::max(high, value);
    ++n;
  }
  const double mean = sum / n;
  double squares = 0;
  for (const double value : values) {
    if (std::isfinite(value)) squares += (value - mean) * (value - mean);
  }
  ordered_json edges = ordered_json::array();
  for (std::size_t i = 0; i <= range.count; ++i) edges.push_back(Number(range.edge(i)));
  ordered_json out;
  out["kind"] = "histogram";
  out["edges"] = std::move(edges);
  out["counts"] = counts;
  out["mean"] = Number(mean);
  out["std"] = Number(std::sqrt(squares / n));
  out["min"] = Number(range.low);
  out["max"] = Number(high);
  return out;
}

ordered_json RocCurve(std::span<const std::int32_t> labels, std::span<const double> scores) {
  std::vector<std::pair<double, bool>> sorted;
  double positives = 0;
  double negatives = 0;
  for (std::size_t i = 0; i < std::min(labels.size(), scores.size()); ++i) {
    if (labels[i] < 0 || labels[i] > 1 || std::isnan(scores[i])) continue;
    sorted.emplace_back(scores[i], labels[i] == 1);
    ++(labels[i] == 1 ? positives : negatives);
  }
  if (positives == 0 || negatives == 0) return nullptr;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::pair<double, double>> points{{0, 0}};
  double hits = 0;
  double misses = 0;
  double area = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    ++(sorted[i].second ? hits : misses);
    if (i + 1 < sorted.size() && sorted[i + 1].first == sorted[i].first) continue;
    const std::pair<double, double> point(misses / negatives, hits / positives);
    area += (point.first - points.back().first) * (point.second + points.back().second) / 2;
    points.push_back(point);
  }
  ordered_json across = ordered_json::array();
  ordered_json up = ordered_json::array();
  const std::size_t stride = (points.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i % stride != 0 && i + 1 != points.size()) continue;
    across.push_back(Number(points[i].first));
    up.push_back(Number(points[i].second));
  }
  ordered_json out;
  out["auc"] = Number(area);
  out["false_positive_rate"] = std::move(across);
  out["true_positive_rate"] = std::move(up);
  return out;
}

ordered_json ErrorByLabel(std::span<const double> labels, std::span<const double> predictions,
                          std::size_t bins) {
  ordered_json out = ordered_json::array();
  const Bins range(labels, bins);
  if (range.empty()) return out;
  std::vector<double> sums(range.count);
  std::vector<std::uint64_t> counts(range.count);
  for (std::size_t i = 0; i < std::min(labels.size(), predictions.size()); ++i) {
    const double error = std::abs(labels[i] - predictions[i]);
    if (!std::isfinite(labels[i]) || !std::isfinite(error)) continue;
    sums[range.At(labels[i])] += error;
    ++counts[range.At(labels[i])];
  }
  for (std::size_t i = 0; i < range.count; ++i) {
    out.push_back({{"from", Number(range.edge(i))},
                   {"to", Number(range.edge(i + 1))},
                   {"count", counts[i]},
                   {"mean_absolute_error",
                    counts[i] == 0 ? ordered_json(nullptr)
                                   : Number(sums[i] / static_cast<double>(counts[i]))}});
  }
  return out;
}

}  // namespace telltale::rules
