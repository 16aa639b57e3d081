// SPDX-License-Identifier: Apache-2.0
// Finds or makes the run directory and keeps run.json true over the life of one attempt.
// One owner, the supervisor's thread. The directory is locked (flock) while a supervisor has it.
#pragma once
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "store/run_info.h"

namespace telltale::run {

struct RunRequest {
  std::filesystem::path
      directory;  ///< Empty: telltale-runs/<UTC time>-<name> of the working directory.
  std::vector<std::string> command;  ///< As the user gave it.
  std::int64_t interval_ms = 500;
  double overhead_budget = 0.01;
  std::string plan;   ///< The capture plan, a JSON object; empty: the default.
  std::string rules;  ///< The set of rules, a JSON object; empty: the default.
  std::string telltale_version;
};

class RunDirectory {
 public:
  /// Makes the folder, or takes an existing run for its next attempt. kUsage: a folder with foreign
  /// content, a path that no folder can have; kRunning: somebody has the run; kVersion: written by
  /// a newer format; kUnusable: run.json is damaged; kIo: disk full, not writable, and the like.
  static Result<RunDirectory> Prepare(const RunRequest& request);

  const std::filesystem::path& path() const { return path_; }  ///< Absolute.
  const store::RunInfo& info() const { return info_; }
  std::uint32_t attempt() const { return info_.attempts.back().number; }

  /// The training runs: names its root process in run.json. Written by a thread: where the disk has
  /// much to do that takes seconds, in which the agent must hear of the processes that come.
  void Started(pid_t pid);
  /// What became of that, once, as soon as it is known.
  Status Written();
  /// It has ended, and so.
  Status Ended(const ProcessExit& exit);
  /// Every row is in the store: readers may call the run finished.
  Status Finished();
  /// There is no attempt after all: leaves run.json, and the folder, as Prepare found them.
  void Abandon();

 private:
  RunDirectory() = default;
  Status Write();

  std::filesystem::path path_;
  store::RunInfo info_;
  bool made_ = false;                     ///< By us: the folder was not there.
  std::optional<store::RunInfo> before_;  ///< The run as it was; none: the folder held none.
  UniqueFd lock_;
  std::future<Status> writing_;  ///< Of Started; waited for before anything else is written.
};

}  // namespace telltale::run
