// SPDX-License-Identifier: Apache-2.0
// Finds or makes the run directory and keeps run.json true over the life of one attempt.
// One owner, the supervisor's thread. The directory is locked (flock) while a supervisor has it, or
// while what it had written last is still on its way to the disk.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "run/errand.h"
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

/// Whether the disk takes a file where the run directory is to be, or refuses one, in the time that
/// a training is kept waiting for it at most. Not: Prepare might never come back. REQUIRES: we are
/// one thread.
bool DiskAnswers(const RunRequest& request);

class RunDirectory {
 public:
  /// Makes the folder, or takes an existing run for its next attempt. kUsage: a folder with foreign
  /// content, a path that no folder can have; kRunning: somebody has the run; kVersion: written by
  /// a newer format; kUnusable: run.json is damaged; kIo: disk full, not writable, and the like. So
  /// are, with `refused`, links in the place of the run: then no training is to start.
  static Result<RunDirectory> Prepare(const RunRequest& request, bool* refused);

  const std::filesystem::path& path() const { return path_; }  ///< Absolute.
  const store::RunInfo& info() const { return info_; }
  std::uint32_t attempt() const { return info_.attempts.back().number; }
  /// Who else may write into the folder, and what that means, for its user; else empty.
  const std::string& warning() const { return warning_; }

  /// Starts the process that writes run.json from here on. Where the disk has much to do that takes
  /// seconds, in which the agent must hear of the processes that come and signals are to be heard;
  /// and a disk that does not answer holds up nobody but that process, which may outlive us: it
  /// then writes what it was told before it ends. kLimit: it cannot be started. REQUIRES: we are
  /// one thread.
  Status StartWriter();

  // These three have run.json written. REQUIRES: StartWriter was ok.
  /// The training runs: names its root process.
  void Started(pid_t pid);
  /// It has ended, and so.
  void Ended(const ProcessExit& exit);
  /// Every row is in the store: readers may call the run finished.
  void Finished();
  /// What became of the newest write, once, as soon as it is known.
  Status Written();
  /// The disk has, or has refused, all that was to be written.
  bool Settled();
  /// Whether the disk answers, and takes what it is given. One that did may have fallen silent
  /// since: as long as this is asked, run.json is written again now and then.
  bool Answers();
  /// Readable when one of the three above may say something new; -1: never.
  int fd() const { return writer_.link(); }
  /// Nothing more is to be written, and the next one may have the folder; as soon as what is still
  /// on its way to the disk is there. Waits for no disk.
  void Release();
  /// There is no attempt after all: leaves run.json, and the folder, as Prepare found them, and no
  /// process of ours that would be the training's. REQUIRES: Started was not called.
  void Abandon();

 private:
  struct Change;
  RunDirectory() = default;
  static void Apply(const Change& change, store::RunInfo* info);
  static int KeepWriting(int link, const std::filesystem::path& path, store::RunInfo info);
  void Tell(Change change);
  void Ask(Change change);
  void Answered(std::uint64_t number, bool taken);
  bool Send(const Change& change);
  void ReadAnswers();
  void Fail(Status status);

  std::filesystem::path path_;
  store::RunInfo info_;
  std::string warning_;
  bool made_ = false;                     ///< By us: the folder was not there.
  std::optional<store::RunInfo> before_;  ///< The run as it was; none: the folder held none.
  UniqueFd lock_;
  std::int64_t started_ns_ = 0;  ///< CLOCK_MONOTONIC at the attempt's start_ns.
  Errand writer_;
  int writers_died_ = 0;
  std::uint64_t told_ = 0;      ///< The newest change that says something new...
  std::uint64_t asked_ = 0;     ///< ...and of all, those that only ask the disk among them...
  std::uint64_t answered_ = 0;  ///< ...and the newest of which it is known what became of it.
  std::int64_t asked_ns_ = 0;   ///< Since when an answer is waited for, or when the newest came.
  bool taken_ = true;           ///< The newest that was answered is on the disk.
  Status outcome_;              ///< Not yet told.
};

}  // namespace telltale::run
