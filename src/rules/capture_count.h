// SPDX-License-Identifier: Apache-2.0
// How many captures the rules were given, of how many that the plan had for the TRAIN steps which
// were made: a rule that looked at 2 of 12 has not seen that nothing is wrong.
//
// Thread safety: none. Memory: a number a series, a few a process.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "format/records.gen.h"
#include "rules/rule_set.h"
#include "rules/series.h"
#include "store/reader.h"

namespace telltale::rules {

/// Captures that came, and those that were planned.
struct Captures {
  std::int64_t given = 0;
  std::int64_t planned = 0;

  /// So few that who found nothing in them cannot say that there is nothing. One that is missing
  /// proves nothing: what a pattern names begins with the second capture of a short run.
  bool TooFew() const { return planned - given >= 2 && given * 5 < planned * 3; }
  /// "2 of 12 captures".
  std::string Words() const;
};

class CaptureCount {
 public:
  /// Each record once, in order; with the number of its series where it has one.
  void See(const store::OrderedRecord& record, std::uint32_t series) {
    switch (record.table) {
      case format::TableId::kStatistics:
        SeeNumbers(*record.As<format::StatisticRow>());
        return SeeCapture(series, record.As<format::StatisticRow>()->step);
      case format::TableId::kHistograms:
        return SeeCapture(series, record.As<format::HistogramRow>()->step);
      case format::TableId::kTensors:
        return SeeCapture(series, record.As<format::TensorRow>()->step);
      case format::TableId::kSteps:
        return SeeStep(*record.As<format::StepRow>());
      case format::TableId::kEvents:
        return SeeEvent(*record.As<format::EventRow>());
      default:
        return;
    }
  }

  /// Of a rule that wants `series`: of what it needs the part that came least; nothing where the
  /// plan has nothing of it, or none of it came at all (the model has no such tensors).
  std::optional<Captures> Of(const std::vector<Need>& needs,
                             const std::vector<const Series*>& series) const;

  /// First step whose captured tensors had one without any finite number, where half of all that
  /// were captured had none; else -1.
  std::int64_t no_number_since() const {
    return 2 * no_numbers_ >= captured_ ? no_number_since_ : -1;
  }

 private:
  struct Planned {
    std::string collection;
    std::vector<std::string> take;
    std::int64_t interval = 0, start = 0, end = 0;  ///< end 0: none.
    std::vector<std::int64_t> steps;                ///< Rising.

    bool Due(std::int64_t step) const;
  };
  struct Seen {
    std::int64_t step = -1;  ///< Of the newest capture.
    std::int64_t count = 0;
  };
  using ProcessKey =
      std::tuple<std::int32_t, std::int32_t, std::uint32_t>;  ///< rank, pid, attempt.
  struct Process {
    std::int64_t steps = 0;
    std::map<std::string, std::int64_t, std::less<>> due;  ///< By collection.
  };

  void SeeCapture(std::uint32_t series, std::int64_t step) {
    if (series == kNoSeries) return;
    if (seen_.size() <= series) seen_.resize(series + 1);
    Seen& seen = seen_[series];
    if (step <= seen.step) return;
    seen.step = step;
    ++seen.count;
  }
  void SeeNumbers(const format::StatisticRow& row) {
    ++captured_;
    if (!std::isnan(row.min) || row.count == 0) return;
    ++no_numbers_;
    if (no_number_since_ < 0) no_number_since_ = row.step;
  }
  void SeeStep(const format::StepRow& step);
  void SeeEvent(const format::EventRow& event);
  std::int64_t PlannedOf(const Process& process, const Need& need) const;

  std::vector<Seen> seen_;  ///< By series.
  std::uint64_t captured_ = 0, no_numbers_ = 0;
  std::int64_t no_number_since_ = -1;
  std::vector<Planned> plan_;
  std::map<std::string, std::vector<std::string>, std::less<>> takes_;  ///< Of any plan so far.
  std::map<ProcessKey, Process> processes_;
};

}  // namespace telltale::rules
