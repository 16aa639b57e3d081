// SPDX-License-Identifier: Apache-2.0
#include "rules/missing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "store/reader.h"

namespace telltale::rules {
namespace {

using format::TableId;

/// By Datum: what is said where it is not there.
constexpr std::array<std::string_view, 8> kNone = {
    "the machine was not sampled",
    "no GPU was seen",
    "no GPU utilization was recorded",
    "no GPU memory was recorded",
    "no training step was recorded",
    "the training has only one rank",
    "no loss was recorded",
    "no evaluation loss was recorded",
};
/// Those that only a rule knows, by what it wants.
constexpr std::uint32_t kOfRule = DataMask(Datum::kLoss, Datum::kEvaluation);

/// From so many steps or seconds on they are not what is too few.
constexpr std::uint64_t kManySteps = 1000;
constexpr double kLongSeconds = 600;

constexpr std::uint32_t kTensorTables = store::MaskOf(TableId::kStatistics) |
                                        store::MaskOf(TableId::kTensors) |
                                        store::MaskOf(TableId::kHistograms);

std::uint32_t DataOf(const Series& series) {
  if (series.table == TableId::kScalars) {
    return DataMask(Datum::kLoss) | (series.mode == "EVAL" ? DataMask(Datum::kEvaluation) : 0);
  }
  if (series.table != TableId::kMetrics) return 0;
  std::uint32_t data = DataMask(Datum::kSamples);
  const std::string_view name = series.name;
  if (name.starts_with("gpu.")) data |= DataMask(Datum::kGpu);
  if (name == "gpu.utilization") data |= DataMask(Datum::kGpuLoad);
  if (name == "gpu.memory_used" || name == "gpu.memory_percent") {
    data |= DataMask(Datum::kGpuMemory);
  }
  return data;
}

std::uint32_t TablesOf(std::string_view take) {
  if (take == "histogram") return store::MaskOf(TableId::kHistograms);
  return store::MaskOf(take == "values" || take == "shape" ? TableId::kTensors
                                                           : TableId::kStatistics);
}

/// "no weights or gradients were captured"; empty where something came of each collection.
std::string TensorsMissing(const std::vector<Need>& needs, const SeenByRule& its, const Seen& run) {
  // A collection may do in one form or another.
  std::vector<std::pair<std::string, std::uint32_t>> named;
  std::uint32_t patterns = 0;
  for (const Need& need : needs) {
    if (!need.include.empty()) {
      patterns |= TablesOf(need.take);
      continue;
    }
    const auto known = std::find_if(named.begin(), named.end(),
                                    [&](const auto& one) { return one.first == need.collection; });
    if (known == named.end()) {
      named.emplace_back(need.collection, TablesOf(need.take));
    } else {
      known->second |= TablesOf(need.take);
    }
  }
  // A model may well have no biases.
  const bool weights = run.Captured(kTensorTables, "weights");
  std::vector<std::string> lacking;
  for (const auto& [collection, tables] : named) {
    if (run.Captured(tables, collection) || (collection == "biases" && weights)) continue;
    std::string words = collection;
    std::replace(words.begin(), words.end(), '_', ' ');
    lacking.push_back(
        fmt::format("{}{}", run.Captured(kTensorTables, collection) ? "values of " : "", words));
  }
  std::string out;
  for (std::size_t i = 0; i < lacking.size(); ++i) {
    out += fmt::format("{}{}",
                       i == 0                    ? "no "
                       : i + 1 == lacking.size() ? " or "
                                                 : ", ",
                       lacking[i]);
  }
  if (!out.empty()) return out + " were captured";
  if (named.empty() && patterns != 0 && !its.Captured(patterns)) {
    return "no tensor with a matching name was captured";
  }
  return {};
}

std::string Seconds(double seconds) {
  return seconds < 120 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

}  // namespace

void Seen::Add(const Series& series) {
  data_ |= DataOf(series) & ~kOfRule;
  const bool training = series.mode == "TRAIN" || series.mode == "GLOBAL";
  if (training && (store::MaskOf(series.table) & kTensorTables) != 0) {
    collections_.emplace(series.table, series.collection);
  }
}

std::uint64_t Seen::steps() const {
  std::uint64_t most = 0;
  for (const auto& [rank, steps] : steps_) most = std::max(most, steps);
  return most;
}

bool Seen::Captured(std::uint32_t tables, const std::string& collection) const {
  return std::any_of(collections_.begin(), collections_.end(), [&](const auto& known) {
    return known.second == collection && (store::MaskOf(known.first) & tables) != 0;
  });
}

void SeenByRule::Add(const Series& series) {
  data_ |= DataOf(series);
  tables_ |= store::MaskOf(series.table) & kTensorTables;
}

std::string Missing(const RuleDesc& rule, const std::vector<Need>& needs, const SeenByRule& its,
                    const Seen& run, const Extent& extent) {
  std::uint32_t wanted = rule.data_mask;
  if (!needs.empty()) wanted |= DataMask(Datum::kSteps);
  const std::uint32_t there = (run.data() & ~kOfRule) | (its.data() & kOfRule);
  for (std::size_t datum = 0; datum < kNone.size(); ++datum) {
    if ((wanted & ~there & (1U << datum)) == 0) continue;
    const bool evaluation = static_cast<Datum>(datum) == Datum::kEvaluation;
    return std::string(evaluation && run.evaluated() ? kEvaluationWithoutLoss : kNone[datum]);
  }
  if (std::string tensors = TensorsMissing(needs, its, run); !tensors.empty()) return tensors;
  if (!rule.captures.empty() && needs.empty() && !its.Captured(kTensorTables)) {
    return "no tensor to judge was captured";  // Nobody has named any: it takes all.
  }
  const double seconds = extent.seconds;
  if (run.steps() == 0) return fmt::format("the run was too short ({})", Seconds(seconds));
  if (extent.captures && extent.captures->TooFew()) {
    return fmt::format("only {} of {} planned captures came", extent.captures->given,
                       extent.captures->planned);
  }
  if (extent.captures && extent.no_number_since >= 0) {
    return fmt::format("captured tensors hold no finite number from step {} on",
                       extent.no_number_since);
  }
  if (run.steps() >= kManySteps && seconds >= kLongSeconds) {
    return (wanted & DataMask(Datum::kSamples)) != 0
               ? "some of the machine's metrics that are needed were not recorded"
               : "some of the data that is needed was not recorded";
  }
  return fmt::format("{} {} in {} are too few", run.steps(), run.steps() == 1 ? "step" : "steps",
                     Seconds(seconds));
}

}  // namespace telltale::rules
