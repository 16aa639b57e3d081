// SPDX-License-Identifier: Apache-2.0
// telltale ls PATH: the runs below a folder, newest first.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/run_files.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "report/text.h"
#include "rules/finding_json.h"
#include "server/isolated.h"
#include "server/run_card.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

/// Deep enough for PATH/project/day/run; never into a run itself.
constexpr int kMaxDepth = 4;

void FindRuns(const fs::path& path, int depth, std::vector<fs::path>* out) {
  if (run_files::Exists({path, "run.json"})) {
    out->push_back(path);
    return;
  }
  if (depth == 0) return;
  std::error_code error;
  for (fs::directory_iterator at(path, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code kind;
    if (at->is_directory(kind) && !at->is_symlink(kind)) FindRuns(at->path(), depth - 1, out);
  }
}

/// A run's line, as text or as JSON.
struct Line {
  std::int64_t created_ns = 0;
  std::string text;
  nlohmann::ordered_json json;
  std::string damage;  ///< Of what was read for the line.
};

Line LineOf(const report::RunData& data, bool json) {
  Line line;
  line.created_ns = data.replay.info.created_ns;
  if (const std::string damage = report::Damage(data.replay.salvage); !damage.empty()) {
    line.damage = fmt::format("{}: {}", data.path.string(), damage);
  }
  if (const std::string lost = report::UnrecordedWords(data); !lost.empty()) {
    line.damage = fmt::format(
        "{}{}", line.damage.empty() ? data.path.string() + ": " : line.damage + " ", lost);
  }
  const rules::Finding* worst = nullptr;
  for (const rules::Finding& f : data.replay.findings) {
    if (worst == nullptr || f.incident.severity > worst->incident.severity) worst = &f;
  }
  const std::int64_t steps = data.summary.train_steps();
  if (json) {
    line.json = {{"id", data.replay.info.id},
                 {"name", data.replay.info.name},
                 {"path", data.path.string()},
                 {"state", data.replay.state.state},
                 {"attempts", data.replay.info.attempts.size()},
                 {"steps", steps},
                 {"created_ns", line.created_ns},
                 {"duration_seconds", data.elapsed_seconds()},
                 {"not_recorded_since_ns", nullptr},
                 {"findings", nlohmann::ordered_json::array()},
                 {"worst", nullptr},
                 {"damaged", nullptr}};
    if (!line.damage.empty()) line.json["damaged"] = line.damage;
    if (const auto& lost = data.replay.state.unrecorded) {
      line.json["not_recorded_since_ns"] = lost->since_ns;
    }
    for (const auto& f : data.replay.findings) line.json["findings"].push_back(rules::ToJson(f));
    if (worst != nullptr) {
      line.json["worst"] = {{"rule", worst->rule},
                            {"severity", rules::Name(worst->incident.severity)},
                            {"message", worst->incident.message}};
    }
    return line;
  }
  std::string duration = report::ElapsedWords(data);
  for (auto at = duration.find(report::kSpace); at != std::string::npos;
       at = duration.find(report::kSpace)) {
    duration.replace(at, report::kSpace.size(), 1, ' ');
  }
  line.text =
      fmt::format("{:<32} {:<22} {:>8} {:>10} {:>10}  {}\n", Printable(data.replay.info.id),
                  report::StateWords(data.replay.state), data.replay.info.attempts.size(),
                  report::Thousands(steps), duration,
                  worst == nullptr ? "none"
                                   : fmt::format("{} {}", rules::Name(worst->incident.severity),
                                                 Printable(worst->incident.message)));
  return line;
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
  // One run is in memory at a time; of those before it only the lines are.
  std::vector<Line> lines;
  std::vector<std::string> broken;
  std::vector<std::string> damaged;
  Code code = Code::kPartial;
  for (const fs::path& run : found) {
    Status status;
    const Status isolated = server::Isolated(run, [&] {
      const auto data = server::ReadCard(run);
      status = data.status();
      if (data.ok()) lines.push_back(LineOf(*data, json));
    });
    if (!isolated.ok()) status = isolated;
    if (status.ok()) {
      if (!lines.back().damage.empty()) damaged.push_back(lines.back().damage);
    } else {
      broken.push_back(status.message());
      // Of a run that is all there is to list nothing was used.
      if (run == path) code = status.code();
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.created_ns > b.created_ns; });
  if (json) {
    nlohmann::ordered_json out = {{"runs", nlohmann::ordered_json::array()}};
    for (Line& line : lines) out["runs"].push_back(std::move(line.json));
    out["unreadable"] = broken;
    Print("{}\n", DocumentText(out));
  } else if (!lines.empty()) {
    Print("{:<32} {:<22} {:>8} {:>10} {:>10}  {}\n", "run", "state", "attempts", "steps",
          "duration", "worst finding");
    for (const Line& line : lines) Print("{}", line.text);
  } else if (broken.empty()) {
    Print("no runs below {}\n", Printable(path));
  }
  if (broken.empty() && damaged.empty()) return 0;
  if (!json) {
    for (const auto* messages : {&broken, &damaged}) {
      for (const std::string& message : *messages) Fail("ls", Status(code, message));
    }
  }
  return static_cast<int>(code);
}

}  // namespace

void RegisterLs(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "ls", "List the runs below a folder",
                 "  telltale ls telltale-runs\n  telltale ls . --json", {0, 3, 7, 8});
  auto path = std::make_shared<std::string>(".");
  auto json = std::make_shared<bool>(false);
  AddOption(command, "PATH", *path, "Folder (default: the current one)");
  AddJson(command, json.get());
  OnRun(command, context, [path, json] { return Ls(*path, *json); });
}

}  // namespace telltale::cli
