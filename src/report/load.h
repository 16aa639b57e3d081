// SPDX-License-Identifier: Apache-2.0
// What every report of one run is made from, read in one pass.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "analysis/root_cause.h"
#include "analysis/summary.h"
#include "analysis/system_usage.h"
#include "base/status.h"
#include "rules/replay.h"

namespace telltale::report {

struct RunData {
  std::filesystem::path path;
  rules::Replay replay;
  analysis::Summary summary;
  analysis::CauseTrail trail;   ///< Fed as the summary is.
  analysis::SystemUsage usage;  ///< Likewise.
  /// Why the trace gave no advice, where there is one that could not be read; else empty.
  std::string advice_trouble;

  /// What to call the run: its name, else its id.
  const std::string& title() const {
    return replay.info.name.empty() ? replay.info.id : replay.info.name;
  }
  /// When the run ended, or its newest record, on the run's clock. By the records' times where
  /// run.json has another end than they: it is of the wall clock, which may have been set
  /// meanwhile.
  std::int64_t end_ns() const;
  /// From the first attempt's start to the last one's end, or to the newest record.
  double elapsed_seconds() const;
  /// It took that long at least: nobody who recorded it has seen its end.
  bool end_unknown() const;
  /// From when on attempts before the newest were not recorded: as later agents said, and as the
  /// folders of others tell.
  std::vector<std::int64_t> lost_before_ns() const;
  /// Time that the findings cost together: each second of a rank once, whatever it was lost to;
  /// never more than elapsed. With several ranks the mean over ranks, as ranks lose the same time
  /// together.
  double lost_seconds() const;
  /// Of these findings alone, which speak of one thing: of those that overlap the dearest counts.
  double lost_seconds_of(const std::vector<std::size_t>& findings) const;
  /// The same, `groups` being GroupFindings of it: whoever asks of each group makes them once.
  double lost_seconds_of(const std::vector<std::size_t>& findings,
                         const std::vector<std::vector<std::size_t>>& groups) const;
};

/// Of a run that goes on, what was recorded until about `until_ns` (Unix time). `set`: judged by
/// these rules instead of the run's own. `progress` is told now and then how many records were
/// read.
Result<RunData> Load(const std::filesystem::path& run,
                     std::int64_t until_ns = std::numeric_limits<std::int64_t>::max(),
                     std::optional<rules::RuleSet> set = std::nullopt,
                     const std::function<void(std::uint64_t records)>& progress = {});

}  // namespace telltale::report
