// SPDX-License-Identifier: Apache-2.0
// telltale verify: checks every checksum of a run directory.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "store/verify.h"

namespace telltale::cli {
namespace {

using nlohmann::ordered_json;

struct Args {
  std::string run;
  bool json = false;
};

void PrintJson(const store::VerifyReport& report) {
  ordered_json problems = ordered_json::array();
  for (const store::Problem& problem : report.problems) {
    ordered_json one = {{"file", problem.file}};
    one["offset"] = problem.offset ? ordered_json(*problem.offset) : ordered_json();
    one["what"] = problem.what;
    problems.push_back(std::move(one));
  }
  const ordered_json out = {{"ok", report.problems.empty()},
                            {"state", report.state},
                            {"writers", report.writers},
                            {"journals", report.journals},
                            {"segments", report.segments},
                            {"tensor_files", report.tensor_files},
                            {"rows", report.rows},
                            {"bytes", report.bytes},
                            {"unread_bytes", report.unread_bytes},
                            {"problems", problems},
                            {"notes", report.notes}};
  Print("{}\n", DocumentText(out));
}

void PrintText(const Args& args, const store::VerifyReport& report) {
  for (const store::Problem& problem : report.problems) {
    const std::string place = problem.offset ? fmt::format(" offset {}:", *problem.offset) : "";
    Print("{}:{} {}\n", Printable(problem.file), place, Printable(problem.what));
  }
  for (const std::string& note : report.notes) Print("{}\n", Printable(note));
  const std::string unread =
      report.unread_bytes > 0 ? fmt::format(", {} of them not read", report.unread_bytes) : "";
  Print("{}: {} · {} writers, {} journals, {} segments, {} tensor files, {} rows, {} bytes{}\n",
        Printable(args.run),
        report.problems.empty() ? "every checksum holds"
                                : fmt::format("{} problems", report.problems.size()),
        report.writers, report.journals, report.segments, report.tensor_files, report.rows,
        report.bytes, unread);
}

int Run(const Args& args) {
  const Result<store::VerifyReport> report = store::Verify(args.run);
  if (!report.ok()) return Fail("verify", report.status());
  if (args.json) {
    PrintJson(*report);
  } else {
    PrintText(args, *report);
  }
  return report->problems.empty() ? 0 : static_cast<int>(Code::kPartial);
}

}  // namespace

void RegisterVerify(CLI::App& app, Context* context) {
  auto args = std::make_shared<Args>();
  CLI::App* command = AddCommand(app, "verify", "Check every checksum of a run",
                                 "  telltale verify telltale-runs/20261120-150412-train\n"
                                 "  telltale verify RUN --json\n"
                                 "Nothing is changed.",
                                 {0, 3, 7, 8});
  AddOption(command, "RUN", args->run, "Run directory").Required();
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Run(*args); });
}

}  // namespace telltale::cli
