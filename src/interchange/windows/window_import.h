// SPDX-License-Identifier: Apache-2.0
// What windows of detail have recorded becomes rows of the run itself: each profiler's files of a
// window of a process are a writer's folder, windows-…, which appears whole, by rename. So a window
// is imported once, whoever does it and whatever ends him meanwhile, and no file has two writers.
//
// A recording is read in a child process with limits. One that cannot be read leaves a folder with
// an event that says so; the run is as it was.
//
// Thread safety: none; not while other threads run.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "interchange/importer.h"

namespace telltale::interchange {

struct WindowImportRequest {
  std::filesystem::path run;
  std::string telltale_version;
  ImportLimits limits;
  /// Also what could not be read before.
  bool again = false;
  /// Also what no event has ended: nobody writes it any more.
  bool all = false;
  bool in_child = true;  ///< False for tests.
};

struct WindowImportReport {
  struct Window {
    std::string folder;
    std::string window;
    std::string mode;
    std::int32_t rank = 0;
    std::int64_t first = 0, last = 0;
    std::uint64_t slices = 0;
    bool partial = false;
    std::string failure;  ///< Empty: it was imported.
  };
  std::vector<Window> windows;  ///< Of this call.
  std::uint64_t before = 0;     ///< Imported, or found unreadable, by an earlier one.
  std::uint64_t waiting = 0;    ///< Still being written.
};

/// kUnusable: no run; kRunning: somebody else does it right now; kIo: the disk takes nothing, the
/// rest is left for a later call.
Result<WindowImportReport> ImportWindows(const WindowImportRequest& request);

}  // namespace telltale::interchange
