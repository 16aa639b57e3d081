// SPDX-License-Identifier: Apache-2.0
// Runs the rules over a run that was or is being recorded: what `check`, the report and the verdict
// show, and what a restarted watcher begins with. Equal to what fired live, because the order of
// the records is, the watcher's decisions about late writers included.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/action_log.h"
#include "rules/engine.h"
#include "rules/rule_set.h"
#include "rules/run_engine.h"
#include "store/reader.h"
#include "store/watch_log.h"

namespace telltale::rules {

/// What the watcher has journalled in the run.
struct WatchJournal {
  /// An event of an action: decided, started, done.
  struct ActionRow {
    std::string kind, data;
    std::int64_t ord_ns = 0;
  };
  std::vector<ActionRow> actions;            ///< In their order.
  std::vector<store::Admission> admissions;  ///< In the order in which they were decided.
  std::vector<std::pair<std::string, std::uint32_t>> revisions;  ///< (incident, revision), sorted.
  /// What the end of an attempt has closed: (incident, revision) → DigestOf the row. Where another
  /// attempt came after it, a replay does not make that revision.
  std::map<std::pair<std::string, std::uint32_t>, std::size_t> ends;
  std::uint64_t cpu_ns = 0;  ///< Processor time of all watchers of the run so far.
  store::SeenEnd seen_end;   ///< Of the newest attempt of which one saw it.
};
Result<WatchJournal> ReadWatchJournal(store::RunReader* reader);
/// Of all that a revision says but its number and when it was written; holds in this process.
std::size_t DigestOf(const format::FindingRow& row);

struct ReplayOptions {
  /// Sees every record of the tables in `sink_mask`, in order.
  std::function<void(const store::OrderedRecord&)> sink;
  std::uint32_t sink_mask = 0;
  /// Of a run that goes on, records from about here on are left: who reads more slowly than it
  /// writes would never come to an end.
  std::int64_t until_ns = std::numeric_limits<std::int64_t>::max();
  /// Instead of the rules that the run was started with.
  std::optional<RuleSet> rules;
};

struct Replay {
  store::RunInfo info;
  store::RunState state;
  std::vector<std::string> writers;
  std::vector<Finding> findings;      ///< Ranked.
  std::size_t findings_left_out = 0;  ///< Beyond kMostRanked.
  std::vector<RuleState> rules;
  std::vector<ActionTaken> actions;  ///< What findings have set off while it was watched.
  RuleSet rule_set;                  ///< Whose rules these are.
  std::string rules_trouble;         ///< RunEngine::trouble.
  store::Salvage salvage;
  std::uint64_t watch_cpu_ns = 0;  ///< Processor time that the watcher took.
  std::int64_t seen_end_ns = 0;    ///< When the watcher saw the end, where nobody recorded that.
  bool ended = false;              ///< The run is over: no incident is open.
};
Result<Replay> ReplayRun(const std::filesystem::path& run, const ReplayOptions& options = {});

/// ReplayRun in pieces, for who has other things to do in between. Thread safety: none.
class Replayer {
 public:
  /// Records of the tables in `more_tables` are delivered too, beside those that rules read.
  /// `rules`: instead of those of the run; kUsage where they name what there is not.
  static Result<std::unique_ptr<Replayer>> Open(const std::filesystem::path& run,
                                                std::uint32_t more_tables = 0,
                                                const std::optional<RuleSet>& rules = std::nullopt);
  /// The next records in order, at most about `max_rows`; the rules have seen them. Valid until the
  /// next call; there may be none. False where all was read.
  Result<bool> Next(std::size_t max_rows, std::vector<store::OrderedRecord>* records);
  /// Everything before this was delivered; the run goes on.
  bool PastWhileRunning(std::int64_t ns) const {
    return !out_.ended && cursor_->frontier_ns() > ns;
  }
  /// Call nothing after this. Of a run that is over, REQUIRES: Next gave false.
  Replay Take();

 private:
  Replayer() = default;

  std::unique_ptr<store::RunReader> reader_;
  std::unique_ptr<store::Cursor> cursor_;
  RunEngine rules_;
  Replay out_;
};

}  // namespace telltale::rules
