// SPDX-License-Identifier: Apache-2.0
// Labels and predictions as the training had them, paired by process, mode and step: what the rules
// about classes read. Which tensor is which: what adapters call labels and predictions, what the
// names say that SageMaker Debugger's parameters give, and what a model gives at its root.
//
// Thread safety: none. Memory: one tensor of each kind a process and mode.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rules/builtin/units.h"
#include "rules/rule.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules {

/// The first samples of a tensor; a sample is one index of the first dimension.
struct Samples {
  Shape shape;  ///< shape[0]: samples that were read. Of a scalar {1}.
  std::vector<double> elements;
  std::size_t count() const { return shape.empty() ? 0 : shape[0]; }
  std::size_t per_sample() const { return count() == 0 ? 0 : elements.size() / count(); }
};

/// As many whole samples as `limit` elements hold. Nothing where only the shape was taken, where
/// the values are gone, and where one sample is larger.
std::optional<Samples> ReadSamples(const Record& record, const format::TensorRow& row,
                                   TensorValues* values, std::size_t limit);

/// What rules about labels and predictions need captured. Evaluations often have a round number of
/// batches: each 10th of them would be the same ones.
inline constexpr CaptureNeed kLabelCaptures[] = {{.collection = "labels",
                                                  .take = "values",
                                                  .interval = 10,
                                                  .eval_interval = 7,
                                                  .asked_only = true},
                                                 {.collection = "predictions",
                                                  .take = "values",
                                                  .interval = 10,
                                                  .eval_interval = 7,
                                                  .asked_only = true}};

/// An element that counts for no class: padding (a negative label), a prediction of NaN.
inline constexpr std::int32_t kNoClass = -1;
/// Labels from here on are numbers, no classes.
inline constexpr std::int32_t kMostClasses = 10'000;

/// The class of each label: whole numbers from 0 on, or one-hot rows of (samples, classes). Nothing
/// where they are numbers of a regression.
std::optional<std::vector<std::int32_t>> ClassesOf(const Samples& labels);
/// The class that is predicted for each of as many labels: the largest of the scores where there
/// are some for each class (along the last dimension, or the second of more than two), a whole
/// number, or 1 where a probability is above one half (a score above 0). Nothing where they fit no
/// classes.
std::optional<std::vector<std::int32_t>> PredictedClasses(const Samples& predictions,
                                                          const std::vector<std::int32_t>& labels,
                                                          std::size_t samples);

/// What one step has of both.
struct LabelBatch {
  std::int64_t step = -1;
  std::int64_t time_ns = 0;
  bool evaluation = false;  ///< Not of what the model is trained on: modes EVAL and PREDICT.
  std::string digest;       ///< Of the labels; the same labels come again and again in boosting.
  std::optional<Samples> labels, predictions;
};

class LabelPairs {
 public:
  struct Names {
    std::string labels_regex, predictions_regex;
    std::string labels_collection = "labels";
    std::string predictions_collection = "predictions";
  };
  explicit LabelPairs(const Names& names);

  void Bind(TensorValues* values) { values_ = values; }
  /// True of tensors that are labels or predictions.
  bool Wants(const Series& series);
  /// REQUIRES: a record of a series that is wanted. Which of them it was, and what its step has by
  /// now; null where its values could not be read, or came twice.
  struct Taken {
    const LabelBatch* batch = nullptr;
    bool labels = false;  ///< This record is the labels; else the predictions.
    bool both() const { return batch != nullptr && batch->labels && batch->predictions; }
  };
  Taken Take(const Record& record, const format::TensorRow& row);

 private:
  enum class Role : std::uint8_t { kNone, kLabels, kPredictions };
  struct Group {
    std::string prefix, mode;  ///< Of a fold of cross-validation, "fold0/"; else empty.
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    LabelBatch batch;
    bool of_root = false;  ///< Its predictions are what the model gave at its root.
  };
  struct Place {
    Role role = Role::kNone;
    bool root = false;  ///< What a model gives at its root.
    std::size_t group = 0;
  };
  Role RoleOf(const Series& series) const;

  TensorPattern labels_, predictions_;
  std::string labels_collection_, predictions_collection_;
  TensorValues* values_ = nullptr;
  std::deque<Group> groups_;
  std::vector<Place> by_series_;
};

}  // namespace telltale::rules
