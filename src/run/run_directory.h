// SPDX-License-Identifier: Apache-2.0
// Finds or makes the run directory and keeps run.json true over the life of one attempt.
// One owner, the supervisor's thread. The directory is locked (flock) while a supervisor has it.
#pragma once
#include <filesystem>
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
  std::string telltale_version;
};

class RunDirectory {
 public:
  /// Makes the folder, or takes an existing run for its next attempt. kUsage: a folder with foreign
  /// content; kRunning: somebody has the run; kVersion: written by a newer format; kIo.
  static Result<RunDirectory> Prepare(const RunRequest& request);

  const std::filesystem::path& path() const { return path_; }  ///< Absolute.
  const store::RunInfo& info() const { return info_; }
  std::uint32_t attempt() const { return info_.attempts.back().number; }

  /// The training runs: names its root process in run.json.
  Status Started(pid_t pid);
  /// It has ended, and so.
  Status Ended(const ProcessExit& exit);
  /// Every row is in the store: readers may call the run finished.
  Status Finished();

 private:
  RunDirectory() = default;
  Status Write();

  std::filesystem::path path_;
  store::RunInfo info_;
  UniqueFd lock_;
};

}  // namespace telltale::run
