// SPDX-License-Identifier: Apache-2.0
// What a rule keeps of each training process until it ends, and which of them a row belongs to.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "format/records.gen.h"
#include "rules/rule.h"

namespace telltale::rules {

/// What a rule keeps of a process derives from it.
struct TrainingProcess {
  std::uint32_t writer = 0;  ///< Of its node: pids are those of one node, whose agent writes.
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  std::uint32_t attempt = 0;
  std::int64_t last_step = -1;

  bool open = false;  ///< The incident is.
  Incident incident;

  /// False where the step was seen already.
  bool BeginStep(std::int64_t step) {
    if (step <= last_step) return false;
    last_step = step;
    return true;
  }
};

/// When each training process ended, and so which rows came late. A process may end while its rings
/// are full: what the agent drains after the event is a row of the process that ended, not of one
/// that has its pid by now. Every row of the ended one began before it ended, those of the other
/// begin later.
class EndedProcesses {
 public:
  void Add(std::int32_t rank, std::int32_t pid, std::uint32_t attempt, std::int64_t time_ns) {
    ended_[{rank, pid}] = {attempt, time_ns};
  }
  bool empty() const { return ended_.empty(); }
  /// The row is of a process that has ended.
  template <class Row>
  bool Had(const Row& row) const {
    return !ended_.empty() && Had(row.rank, row.pid, row.attempt, row.time_ns);
  }

 private:
  bool Had(std::int32_t rank, std::int32_t pid, std::uint32_t attempt, std::int64_t time_ns) const {
    const auto found = ended_.find({rank, pid});
    return found != ended_.end() && attempt <= found->second.attempt &&
           time_ns < found->second.time_ns;
  }

  struct End {
    std::uint32_t attempt = 0;
    std::int64_t time_ns = 0;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, End> ended_;  ///< By (rank, pid): the newest.
};

/// By (rank, pid): a run may hold several processes of one rank (a sweep). Of those that ended only
/// their number and when they ended stay. One whose rank changes (a process group is known late)
/// ends as what it was and begins anew.
template <class Process>
class ProcessTable {
 public:
  ProcessTable() = default;
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  /// Whose row it is, made where it is new; nullptr where its attempt is over or its process has
  /// ended. The first row of an attempt ends the rank's processes of those before it, what was
  /// before a restart says nothing about now: `close(process)` is called for those that have an
  /// open incident, as it is for what the process was under another rank.
  template <class Row, class Close>
  Process* Find(const Row& row, std::uint32_t writer, Close&& close) {
    // Apart, for it is small and rows come by the million.
    if (Process* const same = FindSame(row)) return same;
    return FindOther(row, writer, close);
  }

  /// The same where the row is of the process that was found last, as it mostly is; else nullptr.
  template <class Row>
  Process* FindSame(const Row& row) const {
    const bool same = newest_ != nullptr && newest_->rank == row.rank && newest_->pid == row.pid &&
                      newest_->attempt == row.attempt;
    return same && !ended_.Had(row) ? newest_ : nullptr;
  }

  /// The same as long as no process was forgotten or ended: what is kept of one may be used so
  /// long.
  std::uint32_t changes() const { return changes_; }
  /// Whether none has ended so far, so that no row can be of one that has.
  bool none_ended() const { return ended_.empty(); }

  /// The same of any other row.
  template <class Row, class Close>
  Process* FindOther(const Row& row, std::uint32_t writer, Close&& close) {
    if (ended_.Had(row)) return nullptr;
    const auto known = processes_.find({row.rank, row.pid});
    if (known != processes_.end() && known->second.attempt == row.attempt) {
      return newest_ = &known->second;
    }
    newest_ = nullptr;
    Rank& of_rank = ranks_.try_emplace(row.rank, Rank{row.attempt, 0}).first->second;
    if (row.attempt < of_rank.attempt) return nullptr;
    if (row.attempt > of_rank.attempt) of_rank = {row.attempt, 0};
    for (auto at = processes_.begin(); at != processes_.end();) {
      Process& other = at->second;
      const bool former = other.rank == row.rank && other.attempt != row.attempt;
      const bool renamed = other.rank != row.rank && other.pid == row.pid &&
                           other.writer == writer && other.attempt == row.attempt;
      if (!former && !renamed) {
        ++at;
        continue;
      }
      if (other.open) close(&other);
      ++changes_;
      if (renamed) NoteEnd(other, row.attempt, row.time_ns);
      at = processes_.erase(at);
    }
    Process& process = processes_[{row.rank, row.pid}];
    process.writer = writer;
    process.rank = row.rank;
    process.pid = row.pid;
    process.attempt = row.attempt;
    return &process;
  }

  /// On process.exit: `close(process)` judges what is complete by now and closes the incident where
  /// one is open; then nothing is kept of the process. Nothing happens where the table does not
  /// know it (a loader's worker). The rank may have changed since its last row.
  template <class Close>
  void End(const format::EventRow& exit, std::uint32_t writer, Close&& close) {
    newest_ = nullptr;
    ++changes_;
    for (auto at = processes_.begin(); at != processes_.end();) {
      Process& process = at->second;
      if (process.pid != exit.pid || process.writer != writer || process.attempt > exit.attempt) {
        ++at;
        continue;
      }
      close(&process);
      NoteEnd(process, exit.attempt, exit.time_ns);
      at = processes_.erase(at);
    }
  }

  /// Begins the incident of a process. Its subject has the pid only where the rank alone does not
  /// say which process it is: those of the attempt that have ended count too.
  void Open(Process* process, std::int64_t first_step, std::int64_t start_ns) const {
    const auto living = std::count_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
      return entry.first.first == process->rank;
    });
    const auto of_rank = ranks_.find(process->rank);
    const bool alone = living + (of_rank == ranks_.end() ? 0 : of_rank->second.ended) == 1;
    process->open = true;
    process->incident = Incident();
    process->incident.subject = alone ? fmt::format("rank {}", process->rank)
                                      : fmt::format("rank {}, pid {}", process->rank, process->pid);
    process->incident.first_step = first_step;
    process->incident.start_ns = start_ns;
  }

  auto begin() { return processes_.begin(); }
  auto end() { return processes_.end(); }

 private:
  struct Rank {
    std::uint32_t attempt = 0;  ///< The newest.
    std::ptrdiff_t ended = 0;   ///< Processes of that attempt that have ended.
  };

  void NoteEnd(const Process& process, std::uint32_t attempt, std::int64_t time_ns) {
    ++ranks_[process.rank].ended;
    ended_.Add(process.rank, process.pid, attempt, time_ns);
  }

  std::map<std::pair<std::int32_t, std::int32_t>, Process> processes_;
  Process* newest_ = nullptr;  ///< Found last; null: none, or it is no more.
  std::uint32_t changes_ = 0;
  std::map<std::int32_t, Rank> ranks_;
  EndedProcesses ended_;
};

}  // namespace telltale::rules
