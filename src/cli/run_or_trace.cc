// SPDX-License-Identifier: Apache-2.0
#include "cli/run_or_trace.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/heap.h"
#include "base/printable.h"
#include "base/run_files.h"
#include "cli/command.h"
#include "cli/output.h"
#include "interchange/importer.h"
#include "store/run_info.h"

namespace telltale::cli {

bool IsTraceFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return true;
  if (!std::filesystem::is_directory(path, ignored) || run_files::Exists({path, "run.json"})) {
    return false;
  }
  const auto folder = interchange::LookAtFile(std::filesystem::path(path));
  return folder.ok() && interchange::DetectImporter(*folder) != nullptr;
}

Status RunsOrTraces::Open(std::string_view command, std::string* path) {
  if (!IsTraceFile(*path)) return {};
  TELLTALE_ASSIGN_OR_RETURN(interchange::TemporaryRun run,
                            interchange::TemporaryRun::Import({*path}, TELLTALE_VERSION));
  for (const std::string& note : run.summary().notes) {
    Say("telltale {}: {}\n", command, Printable(note));
  }
  if (run.summary().partial()) partial_.push_back(*path);
  *path = run.run().string();
  runs_.push_back(std::move(run));
  return {};
}

Status RunsOrTraces::OpenRun(std::string_view command, std::string* path) {
  TELLTALE_RETURN_IF_ERROR(Open(command, path));
  const std::filesystem::path run = *path;
  std::error_code error;
  if (!run_files::Exists({run, "run.json"}) && (errno == ENOENT || errno == ENOTDIR)) {
    return {Code::kUnusable,
            fmt::format("{} {}: name a run that `telltale run` or `telltale import` made, or a "
                        "profiler's trace",
                        *path,
                        std::filesystem::exists(run, error)
                            ? "holds no run.json and is no profiler's trace"
                            : "does not exist")};
  }
  return store::ReadRunInfo(run).status();
}

int RunsOrTraces::ExitCode(std::string_view command, int code) const {
  if (code != 0 || partial_.empty()) return code;
  return Fail(
      command,
      {Code::kPartial, fmt::format("{}: part of the trace is damaged or has no place in a run: the "
                                   "rest was used: `telltale import` says what",
                                   partial_.front())});
}

int WithRun(std::string_view command, std::string* path, const std::function<int()>& body) {
  KeepFreedMemoryOfReading();
  RunsOrTraces runs;
  if (const Status opened = runs.OpenRun(command, path); !opened.ok()) {
    return Fail(command, opened);
  }
  return runs.ExitCode(command, body());
}

}  // namespace telltale::cli
