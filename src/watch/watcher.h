// SPDX-License-Identifier: Apache-2.0
// The watcher: follows a run, feeds the rules, journals their findings in RUN/watch. It may die at
// any moment: a new one replays the run from its start, takes the same decisions about late
// writers, and writes only what the journal does not hold yet.
//
// Thread safety: none. Time that matters for the order is journalled; the clock is injected.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rules/actions/dispatcher.h"
#include "rules/engine.h"
#include "rules/replay.h"
#include "rules/run_engine.h"
#include "store/reader.h"
#include "store/writer.h"

namespace telltale::watch {

struct WatchOptions {
  const Clock* clock = &Clock::System();
  /// A writer that does not advance for this long, while others do, is no longer waited for.
  std::int64_t give_up_ns = 10'000'000'000;
  /// The run is over, and nobody waits for its agent any more, but a writer has not ended: nothing
  /// new for this long, and it never will.
  std::int64_t abandon_ns = 10'000'000'000;
  std::int64_t ledger_interval_ns = 5'000'000'000;
  /// The run is over but the disk refuses the last words: so long it is tried again.
  std::int64_t last_words_ns = 10'000'000'000;
  /// The run is over: so long its last messages may take to be delivered.
  std::int64_t last_actions_ns = 15'000'000'000;
  store::WriterOptions writer;
};

class Watcher {
 public:
  static Result<std::unique_ptr<Watcher>> Open(const std::filesystem::path& run,
                                               WatchOptions options = {});

  /// One round: reads what is new, journals what the rules say. True when the run has ended and the
  /// folder is closed; no call after that. Cheap when nothing is new; call it every 100 ms.
  Result<bool> Poll();

  /// The watcher must go while the run goes on: keeps what it has, says nothing of an end.
  Status Stop();

  const rules::Engine& engine() const { return rules_.engine; }

 private:
  /// What is to be journalled, owning its text.
  struct PendingEvent {
    std::string kind, subject, message, data;
    std::string severity = "info";
  };
  struct Holder {
    std::int64_t watermark_ns = 0;
    std::int64_t changed_ns = 0;  ///< By the clock, when the watermark last changed.
    std::uint64_t bytes = 0;
    std::int64_t grew_ns = 0;  ///< By the clock, when its folder last grew.
  };

  Watcher(std::filesystem::path run, std::unique_ptr<store::RunReader> reader, WatchOptions options)
      : run_(std::move(run)), reader_(std::move(reader)), options_(options) {}

  std::int64_t NowRunNs() const;
  /// Reads until nothing is new; returns how many records came.
  Result<std::size_t> Drain();
  void WatchWriters();
  void SeeWhetherLate();
  bool Over();
  void NoteEnd();
  /// Says that nobody records any more; once while the run goes on, and again when it is over, with
  /// when that was seen.
  void NoteLoss(const store::Unrecorded& lost, bool over);
  /// Numbers a revision as the journal does.
  void Number(rules::Finding* finding);
  void NoteStatuses();
  /// What the revisions that are new set off, and what became of what was set off before.
  void NoteActions(const std::vector<rules::Finding>& fresh, bool over);
  /// Asks the agents for the steps around incidents that have opened.
  void KeepAround();
  Status Flush();
  void Say(const Status& status);

  const std::filesystem::path run_;
  std::unique_ptr<store::RunReader> reader_;
  const WatchOptions options_;
  std::unique_ptr<store::Cursor> cursor_;
  std::unique_ptr<store::Writer> writer_;
  rules::RunEngine rules_;
  std::unique_ptr<rules::Dispatcher> dispatcher_;
  std::vector<rules::Finding> to_keep_;  ///< Opened: the agents are to be asked.
  std::set<std::string> kept_;           ///< Ids of incidents that they were asked for.
  bool actions_sync_ = false;  ///< The journal has what is to be done; the disk is being asked.
  std::vector<std::pair<std::string, std::uint32_t>> known_;  ///< In the journal before; sorted.
  /// WatchJournal::ends.
  std::map<std::pair<std::string, std::uint32_t>, std::size_t> ends_;
  /// By incident: how many of them the engine does not make, since another attempt came.
  std::map<std::string, std::uint32_t> passed_ends_;
  std::map<std::string, Holder> holders_;
  std::set<std::string> given_up_;
  std::map<std::string, rules::RuleStatus> statuses_;
  bool summed_up_ = false;  ///< The last words of the rules that only report are said.
  std::vector<rules::Finding> findings_;  ///< Not yet in the journal.
  std::vector<PendingEvent> events_;      ///< Likewise.
  std::string said_;                      ///< The error that the log had last.
  std::uint64_t records_ = 0;
  std::int64_t last_new_ns_ = 0;
  std::int64_t last_ledger_ns_ = 0;
  std::int64_t last_look_ns_ = 0;
  bool came_late_ = false;          ///< The run was over before us: its end we have not seen...
  bool quiet_ = false;              ///< ...and nothing had been written for abandon_ns.
  bool lost_ = false;               ///< Nobody records any more; that is said...
  bool loss_ended_ = false;         ///< ...with when the run was over.
  bool last_ledger_ = false;        ///< The ledger at the end is written.
  std::int64_t ended_ns_ = 0;       ///< By the clock, when the rules had said their last word.
  std::int64_t over_since_ns_ = 0;  ///< By the clock, when the run's state was seen to be over.
  std::int64_t over_ns_ = 0;        ///< By the clock, when the disk first refused the last words.
  std::int64_t last_watermark_ns_ = 0;
};

}  // namespace telltale::watch
