// SPDX-License-Identifier: Apache-2.0
// Commands that read a run take another tool's trace too: it is imported into a temporary run,
// which goes when the command ends, whatever ends it.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "interchange/import.h"

namespace telltale::cli {

/// The runs of one command's arguments: run directories as they are, recordings of other tools as
/// temporary runs.
class RunsOrTraces {
 public:
  /// Replaces what is a recording by the run made of it. Notes of the import go to stderr.
  Status Open(std::string_view command, std::string* path);
  /// The same where nothing but a run or a recording will do, and of a run only one whose run.json
  /// this version can read.
  Status OpenRun(std::string_view command, std::string* path);
  /// The command's exit code: that of a partial import where it had no other to say.
  int ExitCode(std::string_view command, int code) const;

 private:
  std::vector<interchange::TemporaryRun> runs_;
  std::vector<std::string> partial_;
};

/// Whether the argument is no run: a file, or a folder that some other tool recorded.
bool IsTraceFile(const std::string& path);

/// Runs the body with `path` replaced where it is a trace; its exit code. For a command that reads
/// the run once and ends: the process keeps the memory that it frees.
int WithRun(std::string_view command, std::string* path, const std::function<int()>& body);

}  // namespace telltale::cli
