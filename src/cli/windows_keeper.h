// SPDX-License-Identifier: Apache-2.0
// Imports what windows of detail have recorded while the run goes on: `telltale import --windows`
// in a child of idle priority, soon after a window has ended, and at the end of the run what is
// left. The training waits for nothing of it.
//
// Thread safety: none.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "run/process.h"

namespace telltale::cli {

/// Of the child: windows are being written still. No Status has it, and nobody else sees it.
inline constexpr int kExitWindowsWait = 75;

/// When to look for windows next: what importing takes is two percent of one core, and little where
/// there is nothing to import.
class WindowsSchedule {
 public:
  /// The event of a window follows its files, and reaches the run a moment later.
  static constexpr std::int64_t kSettleNs = 1'000'000'000;
  static constexpr std::int64_t kPauseFactor = 50;
  static constexpr std::int64_t kLongestPauseNs = 600'000'000'000;

  /// Files have changed.
  void Changed(std::int64_t now_ns) {
    if (due_ns_ == kNever) due_ns_ = std::max(now_ns + kSettleNs, not_before_ns_);
  }
  bool Due(std::int64_t now_ns) const { return now_ns >= due_ns_; }
  void Started() { due_ns_ = kNever; }
  /// `again`: something is left to do.
  void Done(std::int64_t now_ns, std::int64_t cpu_ns, bool again) {
    failures_ = again ? std::min(failures_ + 1, 9) : 0;
    const std::int64_t pause =
        std::max(kPauseFactor * cpu_ns, again ? kSettleNs << failures_ : std::int64_t{0});
    not_before_ns_ = now_ns + std::min(pause, kLongestPauseNs);
    if (again) due_ns_ = not_before_ns_;
    if (due_ns_ != kNever) due_ns_ = std::max(due_ns_, not_before_ns_);
  }
  /// Something is to be done, now or later.
  bool pending() const { return due_ns_ != kNever; }

 private:
  static constexpr std::int64_t kNever = INT64_MAX;
  std::int64_t due_ns_ = kNever;
  std::int64_t not_before_ns_ = 0;
  int failures_ = 0;
};

class WindowsKeeper {
 public:
  /// `program` is this binary.
  WindowsKeeper(std::string program, std::filesystem::path run);
  ~WindowsKeeper() { Stop(); }
  WindowsKeeper(const WindowsKeeper&) = delete;
  WindowsKeeper& operator=(const WindowsKeeper&) = delete;

  /// Starts what is due and takes note of what is done; never waits for it.
  void Tick();
  /// The run is over: imports what is left. Not longer than it may hold up the user's command;
  /// what is left then `telltale import --windows` does.
  void Finish();
  void Stop();

 private:
  void Look();
  void Start(bool all);
  void Reap(int options);

  const std::string program_;
  const std::filesystem::path run_;
  WindowsSchedule schedule_;
  std::int64_t look_at_ns_ = 0;
  /// Newest change of a folder of windows that was seen.
  std::int64_t changed_ = -1;  ///< Unix ns.
  run::Child child_;
};

}  // namespace telltale::cli
