// SPDX-License-Identifier: Apache-2.0
// Finds or makes the run directory and keeps run.json true over the life of one attempt.
// One owner, the supervisor's thread. The directory is locked (flock) while a supervisor has it.
#pragma once
#include <filesystem>
#include <memory>
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
  /// Who else may write into the folder, and what that means, for its user; else empty.
  const std::string& warning() const { return warning_; }

  // These three write run.json by a thread: where the disk has much to do that takes seconds, in
  // which the agent must hear of the processes that come, and signals are to be heard. Where no
  // thread is to be had they wait for the disk.
  /// The training runs: names its root process.
  void Started(pid_t pid);
  /// It has ended, and so.
  void Ended(const ProcessExit& exit);
  /// Every row is in the store: readers may call the run finished.
  void Finished();
  /// What became of the newest write, once, as soon as it is known.
  Status Written();
  /// The disk has, or has refused, all that was to be written.
  bool Settled() const;
  /// There is no attempt after all: leaves run.json, and the folder, as Prepare found them.
  /// REQUIRES: Started was not called.
  void Abandon();

 private:
  struct Writing;
  RunDirectory() = default;
  void Write();

  std::filesystem::path path_;
  store::RunInfo info_;
  std::string warning_;
  bool made_ = false;                     ///< By us: the folder was not there.
  std::optional<store::RunInfo> before_;  ///< The run as it was; none: the folder held none.
  UniqueFd lock_;
  std::shared_ptr<Writing> writing_;  ///< The thread's too, which may outlive us.
};

}  // namespace telltale::run
