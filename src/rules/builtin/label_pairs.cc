// SPDX-License-Identifier: Apache-2.0
// Labels and predictions, paired.
#include "rules/builtin/label_pairs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace telltale::rules {
namespace {

/// Elements of one tensor that are read at most: 16 MiB of doubles.
constexpr std::size_t kMostElements = std::size_t{2} << 20U;

bool IsWhole(double value) { return std::isfinite(value) && value == std::floor(value); }

/// "fold0/" of what belongs to a fold of cross-validation.
std::string_view FoldOf(std::string_view name) {
  if (!name.starts_with("fold")) return {};
  std::size_t at = 4;
  while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0) ++at;
  if (at == 4 || at >= name.size() || name[at] != '/') return {};
  return name.substr(0, at + 1);
}

/// What a model gives at its root, under the names of the adapters.
bool IsRootOutput(std::string_view name) {
  return name == "output" || name == "output.0" || name == "output.logits";
}

/// (samples, classes) with exactly one 1 in each row and else 0.
bool IsOneHot(const Samples& labels) {
  if (labels.shape.size() != 2 || labels.shape[1] < 2) return false;
  const std::size_t classes = labels.shape[1];
  for (std::size_t at = 0; at + classes <= labels.elements.size(); at += classes) {
    std::size_t ones = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      const double value = labels.elements[at + c];
      if (value != 0 && value != 1) return false;
      ones += value == 1 ? 1 : 0;
    }
    if (ones != 1) return false;
  }
  return labels.count() > 0;
}

/// Of scores[begin], scores[begin + stride], ...; kNoClass where one is NaN.
std::int32_t Largest(const std::vector<double>& scores, std::size_t begin, std::size_t stride,
                     std::size_t classes) {
  std::size_t best = 0;
  for (std::size_t c = 0; c < classes; ++c) {
    const double score = scores[begin + c * stride];
    if (std::isnan(score)) return kNoClass;
    if (score > scores[begin + best * stride]) best = c;
  }
  return static_cast<std::int32_t>(best);
}

/// One number for each label.
std::optional<std::vector<std::int32_t>> FromNumbers(const std::vector<double>& values,
                                                     const std::vector<std::int32_t>& labels) {
  const bool whole =
      std::all_of(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(labels.size()),
                  [](double v) { return IsWhole(v) && v >= 0 && v < kMostClasses; });
  const bool shares = std::all_of(values.begin(), values.end(),
                                  [](double v) { return std::isnan(v) || (v >= 0 && v <= 1); });
  const bool binary =
      std::all_of(labels.begin(), labels.end(), [](std::int32_t label) { return label <= 1; });
  if (!whole && !binary) return std::nullopt;
  const double border = shares ? 0.5 : 0;
  std::vector<std::int32_t> out(labels.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double value = values[i];
    out[i] = std::isnan(value) ? kNoClass
             : whole           ? static_cast<std::int32_t>(value)
             : value > border  ? 1
                               : 0;
  }
  return out;
}

}  // namespace

std::optional<Samples> ReadSamples(const Record& record, const format::TensorRow& row,
                                   TensorValues* values, std::size_t limit) {
  if (values == nullptr) return std::nullopt;
  auto shape = ShapeOf(row.shape);
  if (!shape) return std::nullopt;
  if (shape->empty()) shape->push_back(1);
  const std::uint64_t elements = ElementsOf(*shape);
  if (elements == 0) return std::nullopt;
  const std::uint64_t per_sample = elements / (*shape)[0];
  const std::uint64_t fit = std::min<std::uint64_t>((*shape)[0], limit / per_sample);
  if (fit == 0) return std::nullopt;
  auto read = values->Read(record, static_cast<std::size_t>(fit * per_sample));
  if (!read.ok()) return std::nullopt;
  Samples out;
  out.elements = std::move(read).value();
  out.shape = std::move(*shape);
  out.shape[0] = std::min(static_cast<std::size_t>(fit),
                          out.elements.size() / static_cast<std::size_t>(per_sample));
  out.elements.resize(out.shape[0] * static_cast<std::size_t>(per_sample));
  if (out.shape[0] == 0) return std::nullopt;
  return out;
}

std::optional<std::vector<std::int32_t>> ClassesOf(const Samples& labels) {
  std::vector<std::int32_t> out;
  if (IsOneHot(labels)) {
    const std::size_t classes = labels.shape[1];
    if (classes > static_cast<std::size_t>(kMostClasses)) return std::nullopt;
    for (std::size_t i = 0; i < labels.count(); ++i) {
      out.push_back(Largest(labels.elements, i * classes, 1, classes));
    }
    return out;
  }
  out.reserve(labels.elements.size());
  for (const double value : labels.elements) {
    if (!IsWhole(value) || value >= kMostClasses) return std::nullopt;
    out.push_back(value < 0 ? kNoClass : static_cast<std::int32_t>(value));
  }
  return out;
}

std::optional<std::vector<std::int32_t>> PredictedClasses(const Samples& predictions,
                                                          const std::vector<std::int32_t>& labels,
                                                          std::size_t samples) {
  const std::vector<double>& scores = predictions.elements;
  if (labels.empty() || samples == 0 || predictions.count() < samples) return std::nullopt;
  const std::size_t of_sample = labels.size() / samples;  // Labels.
  const std::size_t size = predictions.per_sample();
  if (of_sample == 0 || of_sample * samples != labels.size() || size % of_sample != 0) {
    return std::nullopt;
  }
  const std::size_t classes = size / of_sample;
  if (classes == 1) return FromNumbers(scores, labels);
  const Shape& shape = predictions.shape;
  const bool last = shape.size() >= 2 && shape.back() == classes;
  const bool second = shape.size() > 2 && shape[1] == classes;
  if (!last && !second) return std::nullopt;
  std::vector<std::int32_t> out(labels.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t sample = i / of_sample * size;
    const std::size_t within = i % of_sample;
    out[i] = second ? Largest(scores, sample + within, of_sample, classes)
                    : Largest(scores, sample + within * classes, 1, classes);
  }
  return out;
}

LabelPairs::LabelPairs(const Names& names)
    : labels_(names.labels_regex),
      predictions_(names.predictions_regex),
      labels_collection_(names.labels_collection),
      predictions_collection_(names.predictions_collection) {}

LabelPairs::Role LabelPairs::RoleOf(const Series& series) const {
  if (series.collection == labels_collection_) return Role::kLabels;
  if (series.collection == predictions_collection_) return Role::kPredictions;
  // Names of other kinds may hold the words too: gradient/labels_embedding.weight.
  if (series.collection == "gradients" || series.collection == "weights" ||
      series.collection == "biases" || series.collection == "inputs") {
    return Role::kNone;
  }
  if (labels_.Matches(series.name)) return Role::kLabels;
  if (predictions_.Matches(series.name)) return Role::kPredictions;
  const bool output = series.collection == "outputs" || series.collection == "activations";
  return output && IsRootOutput(series.name) ? Role::kPredictions : Role::kNone;
}

bool LabelPairs::Wants(const Series& series) {
  if (series.table != format::TableId::kTensors) return false;
  const Role role = RoleOf(series);
  if (role == Role::kNone) return false;
  const std::string_view fold = FoldOf(series.name);
  const auto same = [&](const Group& group) {
    return group.rank == series.rank && group.pid == series.pid &&
           group.attempt == series.attempt && group.mode == series.mode && group.prefix == fold;
  };
  const auto found = std::find_if(groups_.begin(), groups_.end(), same);
  const auto at = static_cast<std::size_t>(found - groups_.begin());
  if (found == groups_.end()) {
    Group& group = groups_.emplace_back();
    group.prefix = fold;
    group.mode = series.mode;
    group.rank = series.rank;
    group.pid = series.pid;
    group.attempt = series.attempt;
    group.batch.evaluation = series.mode == "EVAL" || series.mode == "PREDICT";
  }
  if (by_series_.size() <= series.id) by_series_.resize(series.id + 1);
  by_series_[series.id] = {role, role == Role::kPredictions && IsRootOutput(series.name), at};
  return true;
}

LabelPairs::Taken LabelPairs::Take(const Record& record, const format::TensorRow& row) {
  if (record.series >= by_series_.size()) return {};
  const Place place = by_series_[record.series];
  if (place.role == Role::kNone) return {};
  Group& group = groups_[place.group];
  LabelBatch& batch = group.batch;
  const bool labels = place.role == Role::kLabels;
  if (row.step != batch.step) {
    batch.step = row.step;
    batch.labels.reset();
    batch.predictions.reset();
  }
  // The second tensor of a kind within a step (a second head, a second call) is another one's.
  std::optional<Samples>& slot = labels ? batch.labels : batch.predictions;
  // What a loss is given beside its labels belongs to them rather than what the model gave.
  const bool better = !labels && group.of_root && !place.root && !batch.labels;
  if (slot && !better) return {};
  if (!labels) group.of_root = place.root;
  slot = ReadSamples(record, row, values_, kMostElements);
  if (!slot) return {};
  batch.time_ns = row.time_ns;
  if (labels) batch.digest = row.digest;
  // Cut to what both have.
  if (batch.labels && batch.predictions) {
    for (Samples* side : {&*batch.labels, &*batch.predictions}) {
      const std::size_t per_sample = side->per_sample();
      const std::size_t both = std::min(batch.labels->count(), batch.predictions->count());
      if (side->count() == both) continue;
      side->shape[0] = both;
      side->elements.resize(both * per_sample);
    }
  }
  return {&batch, labels};
}

}  // namespace telltale::rules
