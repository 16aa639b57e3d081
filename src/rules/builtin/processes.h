// SPDX-License-Identifier: Apache-2.0
// What a rule keeps of each training process, and which of them a row belongs to.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "rules/rule.h"

namespace telltale::rules {

/// What a rule keeps of a process derives from it.
struct TrainingProcess {
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

/// By (rank, pid): a run may hold several processes of one rank (a sweep).
template <class Process>
class ProcessTable {
 public:
  /// Whose row it is, made where it is new; nullptr where its attempt is over. The first row of an
  /// attempt ends the rank's processes of those before it, what was before a restart says nothing
  /// about now: `close(process)` is called for those that have an open incident.
  template <class Row, class Close>
  Process* Find(const Row& row, Close&& close) {
    const auto known = processes_.find({row.rank, row.pid});
    if (known != processes_.end() && known->second.attempt == row.attempt) return &known->second;
    const auto [newest, first] = attempts_.try_emplace(row.rank, row.attempt);
    if (row.attempt < newest->second) return nullptr;
    newest->second = row.attempt;
    for (auto at = processes_.begin(); at != processes_.end();) {
      if (at->first.first != row.rank || at->second.attempt == row.attempt) {
        ++at;
        continue;
      }
      if (at->second.open) close(&at->second);
      at = processes_.erase(at);
    }
    Process& process = processes_[{row.rank, row.pid}];
    process.rank = row.rank;
    process.pid = row.pid;
    process.attempt = row.attempt;
    return &process;
  }

  /// Begins the incident of a process. Its subject has the pid only where the rank alone does not
  /// say which process it is.
  void Open(Process* process, std::int64_t first_step, std::int64_t start_ns) const {
    const auto of_rank =
        std::count_if(processes_.begin(), processes_.end(),
                      [&](const auto& entry) { return entry.first.first == process->rank; });
    process->open = true;
    process->incident = Incident();
    process->incident.subject = of_rank == 1
                                    ? fmt::format("rank {}", process->rank)
                                    : fmt::format("rank {}, pid {}", process->rank, process->pid);
    process->incident.first_step = first_step;
    process->incident.start_ns = start_ns;
  }

  auto begin() { return processes_.begin(); }
  auto end() { return processes_.end(); }

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, Process> processes_;
  std::map<std::int32_t, std::uint32_t> attempts_;  ///< By rank: the newest.
};

}  // namespace telltale::rules
