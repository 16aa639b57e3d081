// SPDX-License-Identifier: Apache-2.0
// telltale ls PATH: the runs below a folder, newest first.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "report/text.h"
#include "rules/finding_json.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

/// Deep enough for PATH/project/day/run; never into a run itself.
constexpr int kMaxDepth = 4;

void FindRuns(const fs::path& path, int depth, std::vector<fs::path>* out) {
  std::error_code error;
  if (fs::exists(path / "run.json", error)) {
    out->push_back(path);
    return;
  }
  if (depth == 0) return;
  for (fs::directory_iterator at(path, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code kind;
    if (at->is_directory(kind) && !at->is_symlink(kind)) FindRuns(at->path(), depth - 1, out);
  }
}

int Ls(const std::string& path, bool json) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return Fail("ls",
                Status(Code::kUnusable, fmt::format("{}: no such folder: give the folder that "
                                                    "holds runs",
                                                    path)));
  }
  std::vector<fs::path> found;
  FindRuns(path, kMaxDepth, &found);
  std::vector<report::RunData> runs;
  std::vector<std::string> broken;
  for (const fs::path& run : found) {
    auto data = report::Load(run);
    if (data.ok()) {
      runs.push_back(std::move(data).value());
    } else {
      broken.push_back(data.status().message());
    }
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.replay.info.created_ns > b.replay.info.created_ns;
  });
  nlohmann::ordered_json out = {{"runs", nlohmann::ordered_json::array()}};
  if (!json && !runs.empty()) {
    Print("{:<32} {:<22} {:>8} {:>10} {:>10}  {}\n", "run", "state", "attempts", "steps",
          "duration", "worst finding");
  }
  for (const report::RunData& data : runs) {
    const rules::Finding* worst = nullptr;
    for (const rules::Finding& f : data.replay.findings) {
      if (worst == nullptr || f.incident.severity > worst->incident.severity) worst = &f;
    }
    const std::int64_t steps = data.summary.train_steps();
    if (json) {
      nlohmann::ordered_json run = {{"id", data.replay.info.id},
                                    {"name", data.replay.info.name},
                                    {"path", data.path.string()},
                                    {"state", data.replay.state.state},
                                    {"attempts", data.replay.info.attempts.size()},
                                    {"steps", steps},
                                    {"created_ns", data.replay.info.created_ns},
                                    {"duration_seconds", data.elapsed_seconds()},
                                    {"findings", nlohmann::ordered_json::array()},
                                    {"worst", nullptr}};
      for (const auto& f : data.replay.findings) run["findings"].push_back(rules::ToJson(f));
      if (worst != nullptr) {
        run["worst"] = {{"rule", worst->rule},
                        {"severity", rules::Name(worst->incident.severity)},
                        {"message", worst->incident.message}};
      }
      out["runs"].push_back(std::move(run));
      continue;
    }
    std::string duration = report::Duration(data.elapsed_seconds());
    for (auto at = duration.find(report::kSpace); at != std::string::npos;
         at = duration.find(report::kSpace)) {
      duration.replace(at, report::kSpace.size(), " ");
    }
    Print("{:<32} {:<22} {:>8} {:>10} {:>10}  {}\n", Printable(data.replay.info.id),
          report::StateWords(data.replay.state), data.replay.info.attempts.size(),
          report::Thousands(steps), duration,
          worst == nullptr ? "none"
                           : fmt::format("{} {}", rules::Name(worst->incident.severity),
                                         Printable(worst->incident.message)));
  }
  if (json) {
    out["unreadable"] = broken;
    Print("{}\n", JsonText(out));
  } else if (runs.empty() && broken.empty()) {
    Print("no runs below {}\n", Printable(path));
  }
  if (broken.empty()) return 0;
  if (!json) {
    for (const std::string& message : broken) Fail("ls", Status(Code::kPartial, message));
  }
  return static_cast<int>(Code::kPartial);
}

}  // namespace

void RegisterLs(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "ls", "List the runs below a folder",
                                 "  telltale ls telltale-runs\n  telltale ls . --json", {0, 3, 7});
  auto path = std::make_shared<std::string>(".");
  auto json = std::make_shared<bool>(false);
  command->add_option("PATH", *path, "Folder (default: the current one)");
  AddJson(command, json.get());
  OnRun(command, context, [path, json] { return Ls(*path, *json); });
}

}  // namespace telltale::cli
