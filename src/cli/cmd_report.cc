// SPDX-License-Identifier: Apache-2.0
// telltale report RUN: writes report.html and prints where it lies.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/report_keeper.h"
#include "cli/rule_flags.h"
#include "cli/run_or_trace.h"
#include "report/html.h"
#include "report/load.h"
#include "report/text.h"
#include "rules/finding_json.h"
#include "store/recording_end.h"

namespace telltale::cli {
namespace {

struct ReportOptions {
  std::string run;
  std::string out;
  bool json = false;
  int beside = 0;  ///< Pid of the watcher that started us; 0: a person did.
};

int Report(const ReportOptions& options) {
  if (options.beside != 0 && !BecomeReportChild(options.beside)) return 0;
  const auto data = options.beside == 0
                        ? report::Load(options.run)
                        : report::Load(options.run, store::RunClockNow(options.run));
  if (!data.ok()) return Fail("report", data.status());
  const std::filesystem::path out = options.out.empty()
                                        ? std::filesystem::path(options.run) / "report.html"
                                        : std::filesystem::path(options.out);
  if (const Status written = report::WriteReport(*data, out); !written.ok()) {
    return Fail("report", written);
  }
  if (options.beside != 0) return 0;
  if (options.json) {
    nlohmann::ordered_json result = {{"report", out.string()},
                                     {"verdict", report::Verdict(*data)},
                                     {"findings", nlohmann::ordered_json::array()}};
    for (const auto& f : data->replay.findings) result["findings"].push_back(rules::ToJson(f));
    Print("{}\n", DocumentText(result));
  } else {
    // A program gets the path as it is.
    Print("{}\n", ::isatty(STDOUT_FILENO) == 1 ? Printable(out.string()) : out.string());
  }
  if (const std::string lost = report::UnrecordedWords(*data); !lost.empty()) {
    return Fail("report", Status(Code::kPartial, fmt::format("{}: {}", options.run, lost)));
  }
  if (!data->replay.salvage.any()) return 0;
  return Fail(
      "report",
      Status(Code::kPartial, fmt::format("{}: part of the recording is damaged: the rest was used: "
                                         "see `telltale verify {}`",
                                         options.run, options.run)));
}

}  // namespace

void RegisterReport(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "report", "Write the report of a run as one HTML file",
                                 "  telltale report telltale-runs/20261120-150412-train\n"
                                 "  telltale report RUN -o /tmp/report.html",
                                 {0, 3, 7, 8});
  auto options = std::make_shared<ReportOptions>();
  AddOption(command, "RUN", options->run, "Run directory, or a trace").Required();
  AddOption(command, "-o,--output", options->out,
            "File to write (default: RUN/report.html; of a trace, TRACE.report.html here)");
  AddPythonRulesFlag(command);
  AddJson(command, &options->json);
  AddOption(command, "--beside", options->beside, "Pid of the watcher").Hidden();
  OnRun(command, context, [options] {
    // A temporary run is no place for what shall stay.
    if (options->out.empty() && IsTraceFile(options->run)) {
      options->out = std::filesystem::path(options->run).filename().string() + ".report.html";
    }
    return WithRun("report", &options->run, [&] { return Report(*options); });
  });
}

}  // namespace telltale::cli
