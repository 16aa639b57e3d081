// SPDX-License-Identifier: Apache-2.0
// What windows of detail have left in a run (RUN/windows, docs/formats/run-directory.md), and what
// the run itself says of each: its steps, its process, the clocks.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

/// A step of the run, by the run's clock.
struct RunStep {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// One profiler's files of one window in one process.
struct WindowRecording {
  std::string window;   ///< Its name in the plan.
  std::string stem;     ///< rank0-step100-4711: what its files' names begin with.
  std::string mode;     ///< TRAIN, EVAL, PREDICT.
  bool python = false;  ///< cProfile's.
  std::int32_t rank = 0;
  std::int64_t first = 0;
  std::int32_t pid = 0;
  std::vector<std::filesystem::path> files;  ///< Sorted.

  // Of its event window.closed; without one it is being written, or its process has died.
  bool said = false;
  std::int64_t last = 0;
  std::uint32_t attempt = 1;
  std::string node;
  bool early = false;
  std::int64_t closed_ns = 0;     ///< Run clock.
  std::int64_t monotonic_ns = 0;  ///< When it began: CLOCK_MONOTONIC; 0: not said...
  std::int64_t realtime_ns = 0;   ///< ...and CLOCK_REALTIME.

  /// What the agent's newest anchor before it says, where there is one.
  bool anchored = false;
  std::int64_t monotonic_to_run_ns = 0;
  std::int64_t realtime_to_run_ns = 0;

  std::map<std::int64_t, RunStep> steps;  ///< Of its mode and process, as far as the run has them.

  /// Folder of its rows in the run, but for the rank's number.
  std::string FolderPrefix() const;
  std::string Folder() const { return FolderPrefix() + std::to_string(rank); }
  /// Says that it could not be read.
  std::string FailedFolder() const { return Folder() + "-failed"; }
  /// RUN/windows/… of its files, for people and events.
  std::string PathOf(const std::filesystem::path& file) const;
};

/// "rank0-step100-4711" of "rank0-step100-4711.pt.trace.json", taken apart; nothing of other names.
std::optional<WindowRecording> ReadWindowFileName(std::string_view name);

/// All recordings of the run, by folder. kUnusable: no run.
Result<std::vector<WindowRecording>> FindWindowRecordings(const std::filesystem::path& run);

/// Reads their steps from the run.
Status ReadRunSteps(const std::filesystem::path& run, std::vector<WindowRecording>* recordings);

}  // namespace telltale::interchange
