// SPDX-License-Identifier: Apache-2.0
// What the status line says: read from the run like any reader does, by a process of its own, so
// that a disk which is slow or does not answer never holds up the supervisor.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/saturate.h"
#include "run/errand.h"
#include "store/reader.h"

namespace telltale::run {

struct OpenFinding {
  std::string rule;
  std::string severity;
  std::string message;
  std::int64_t last_step = -1;
  std::uint64_t count = 1;  ///< Of findings that this one stands for.
};

/// A finding was opened, changed its severity, or was closed; or a stop of the training begins.
struct FindingChange {
  std::int64_t time_ns = 0;
  std::int64_t step = -1;
  std::string severity;
  std::string message;
  bool closed = false;
};

struct StatusFacts {
  std::int64_t step = -1;
  double steps_per_second = 0;
  bool has_loss = false;
  double loss = 0;
  double cpu_percent = -1;  ///< Of the training's process tree, percent of one core; -1: unknown.
  double wait_share = -1;   ///< Data wait as part of step time, newest steps; -1: unknown.
  double overhead_share = -1;  ///< The probe's own account; -1: unknown.
  std::uint32_t stretch = 1;   ///< The governor takes tensors so many times less often.
  bool shed = false;           ///< It has given up some of what the plan takes.
  std::uint64_t dropped = 0;   ///< Records that were dropped so far.
  std::map<std::string, OpenFinding> open;  ///< By incident.
};

/// What a feed says to who has started it.
struct StatusWord {
  StatusFacts facts;
  std::vector<FindingChange> changes;  ///< The first of them...
  std::uint64_t more_changes = 0;      ///< ...and how many there are beside.
};
/// As one message of bounded size: of many open findings of a rule one with their number.
std::string ToMessage(const StatusWord& word);
/// False where it is none.
bool FromMessage(std::string_view message, StatusWord* word);

/// Folds records into facts. Thread safety: none.
class StatusFold {
 public:
  explicit StatusFold(std::uint32_t attempt) : attempt_(attempt) {}
  void Add(const store::OrderedRecord& record);
  const StatusFacts& facts() const { return facts_; }
  std::vector<FindingChange> TakeChanges() { return std::exchange(changes_, {}); }

 private:
  struct RecentStep {
    std::int64_t end_ns, duration_ns, wait_ns;
  };
  void AddStep(const format::StepRow& row);
  void AddFinding(const format::FindingRow& row);
  void AddEvent(const format::EventRow& row);

  std::uint32_t attempt_;
  StatusFacts facts_;
  std::deque<RecentStep> recent_;
  Sum recent_duration_ns_ = 0;
  Sum recent_wait_ns_ = 0;
  double all_duration_ns_ = 0;
  double all_probe_ns_ = 0;
  /// What Telltale's own processes took from the training, of how long.
  struct Taken {
    std::uint64_t ns = 0, of_ns = 0;
  };
  Taken taken_;
  std::map<std::string, std::uint64_t> dropped_;
  std::vector<FindingChange> changes_;
};

/// "11:02:14", in the zone of this process.
std::string LocalTime(std::int64_t unix_ns);
/// Status line text for `columns` columns, colour sequences not counted.
std::string RenderStatus(const StatusFacts& facts, int columns, bool colour);
/// The line for a log file: "telltale 11:02:14 step 18,400  ◆ high    message".
std::string RenderChange(const FindingChange& change, bool colour);

class StatusFeed {
 public:
  /// Null where no process is to be had. REQUIRES: we are one thread.
  static std::unique_ptr<StatusFeed> Start(std::filesystem::path run, std::uint32_t attempt);
  StatusFeed(const StatusFeed&) = delete;
  StatusFeed& operator=(const StatusFeed&) = delete;

  /// Takes what has come; waits for nothing.
  void Read();
  const StatusFacts& facts() const { return facts_; }
  /// What has changed since the last call; `more`: changes that are counted and not told.
  std::vector<FindingChange> TakeChanges(std::uint64_t* more);
  /// The process has ended: the facts stay as they are.
  bool over() const { return over_; }

 private:
  explicit StatusFeed(Errand errand) : errand_(std::move(errand)) {}

  Errand errand_;  ///< Left behind with us: it may sit in a read that a disk holds up.
  StatusFacts facts_;
  std::vector<FindingChange> changes_;
  std::uint64_t more_changes_ = 0;
  bool over_ = false;
};

}  // namespace telltale::run
