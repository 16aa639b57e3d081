// SPDX-License-Identifier: Apache-2.0
// Why a rule could not judge a run: what of the data that it must see was not there, in a sentence
// without capital and full stop. A rule says what it needs by its RuleDesc (data_mask, captures);
// what there was is noted here as it comes.
//
// Thread safety: none. Memory: a name a collection.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/capture_count.h"
#include "rules/rule.h"
#include "rules/rule_set.h"
#include "rules/series.h"

namespace telltale::rules {

/// What is missing where a run evaluates its model and no loss comes of that.
inline constexpr std::string_view kEvaluationWithoutLoss =
    "evaluation gives no loss: overfitting could not be judged";

/// What came of a run.
class Seen {
 public:
  /// Once for each series.
  void Add(const Series& series);
  void Add(const format::StepRow& step) {
    evaluated_ = evaluated_ || step.mode == "EVAL";
    if (step.mode != "TRAIN") return;
    ++steps_[step.rank];
    data_ |= DataMask(Datum::kSteps);
    if (steps_.size() > 1) data_ |= DataMask(Datum::kRanks);
  }

  std::uint32_t data() const { return data_; }
  /// There were steps of evaluations.
  bool evaluated() const { return evaluated_; }
  /// TRAIN steps of the rank that made most.
  std::uint64_t steps() const;
  /// Whether anything of the collection was captured in TRAIN, in any of these tables.
  bool Captured(std::uint32_t tables, const std::string& collection) const;

 private:
  std::uint32_t data_ = 0;
  bool evaluated_ = false;
  std::map<std::int32_t, std::uint64_t> steps_;                    ///< By rank.
  std::set<std::pair<format::TableId, std::string>> collections_;  ///< Of tensors.
};

/// What came of it that one rule wanted.
class SeenByRule {
 public:
  /// A series that it wants.
  void Add(const Series& series);
  std::uint32_t data() const { return data_; }
  /// Whether a tensor that it wants is in one of these tables.
  bool Captured(std::uint32_t tables) const { return (tables_ & tables) != 0; }

 private:
  std::uint32_t data_ = 0;
  std::uint32_t tables_ = 0;  ///< Of captured tensors.
};

/// How much of it there was.
struct Extent {
  std::optional<Captures> captures;   ///< Of what the rule needs.
  std::int64_t no_number_since = -1;  ///< CaptureCount::no_number_since.
  double seconds = 0;                 ///< Of the run so far.
};

/// Why a rule that has not judged could not: "no GPU was seen", "no gradients were captured", "8
/// steps in 3.2 s are too few".
std::string Missing(const RuleDesc& rule, const std::vector<Need>& needs, const SeenByRule& its,
                    const Seen& run, const Extent& extent);

}  // namespace telltale::rules
