// SPDX-License-Identifier: Apache-2.0
// The parts of a report of a boosted model, each a JSON value: distribution of labels, confusion
// matrix, precision and recall, ROC curve, residuals. Figures have five significant digits.
//
// Thread safety: pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace telltale::rules {

/// Labels and predictions of a classifier, by class.
class ConfusionMatrix {
 public:
  static constexpr std::size_t kMostClasses = 256;

  /// Pairs of which one has no class (below 0), or one from kMostClasses on, are left out.
  ConfusionMatrix(std::span<const std::int32_t> labels, std::span<const std::int32_t> predicted);

  std::size_t classes() const { return counts_.size(); }
  std::uint64_t samples() const { return samples_; }
  /// Share that is predicted right; 0 where there is nothing.
  double accuracy() const;
  /// Of the labels of a class the share that is predicted right; NaN where there are none.
  double recall(std::size_t of_class) const;

  /// {"classes": n, "counts": [[by prediction] by label]}
  nlohmann::ordered_json Counts() const;
  /// {"accuracy", "classes": [{"class", "precision", "recall", "f1", "support"}], "micro", "macro",
  /// "weighted": {"precision", "recall", "f1"}}. Null where nothing is predicted as a class, and
  /// 0 in the means, as scikit-learn has it.
  nlohmann::ordered_json Scores() const;

 private:
  std::vector<std::vector<std::uint64_t>> counts_;  ///< By label, then by prediction.
  std::uint64_t samples_ = 0;
};

/// {"kind": "classes", "counts": {"0": n, ...}}
nlohmann::ordered_json ClassDistribution(std::span<const std::int32_t> labels);
/// {"kind": "histogram", "edges": [bins + 1], "counts": [bins], "mean", "std", "min", "max"} of the
/// finite values. Null where there are none.
nlohmann::ordered_json Distribution(std::span<const double> values, std::size_t bins);
/// {"auc", "false_positive_rate": [], "true_positive_rate": []} of labels 0 and 1 and their scores;
/// equal scores are one point; at most 201 points. Null where one class is missing.
nlohmann::ordered_json RocCurve(std::span<const std::int32_t> labels,
                                std::span<const double> scores);
/// [{"from", "to", "count", "mean_absolute_error"}]: the labels in `bins` ranges of equal width.
nlohmann::ordered_json ErrorByLabel(std::span<const double> labels,
                                    std::span<const double> predictions, std::size_t bins);

}  // namespace telltale::rules
