// SPDX-License-Identifier: Apache-2.0
// telltale watch RUN: runs the rules beside a run that is being recorded. `telltale run` starts it;
// by hand it serves where the run was recorded without a watcher or on another machine. It keeps
// report.html true besides, and imports what windows of detail have recorded.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/exporter_keeper.h"
#include "cli/report_keeper.h"
#include "cli/rule_flags.h"
#include "cli/windows_keeper.h"
#include "report/html.h"
#include "report/load.h"
#include "watch/watcher.h"

namespace telltale::cli {
namespace {

constexpr long kPollNs = 100'000'000;
/// So long a watcher that a person has started on a run that is over waits for a writer that has
/// not said its last word: one that lives says something each second.
constexpr std::int64_t kAbandonNs = 4'000'000'000;

struct WatchArgs {
  std::string run;
  int supervisor = 0;  ///< Its pid; 0: we were started by hand.
  std::string otlp;    ///< Where metrics are pushed to; empty: nowhere.
};

/// The last report, where nobody else writes it.
void WriteLastReport(const std::string& run) {
  const auto data = report::Load(run);
  const Status written =
      data.ok() ? report::WriteReport(*data, std::filesystem::path(run) / "report.html")
                : data.status();
  if (!written.ok()) Fail("watch", written);
}

int Watch(const WatchArgs& args, const std::string& program) {
  const std::string& run = args.run;
  // Waited for below, so that a signal ends the pause and never interrupts a write.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGHUP);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  // Ignored, as we may have been started, the kernel reaps the report's writer before we do.
  signal(SIGCHLD, SIG_DFL);
  // A write past a limit of the file's size is an error to handle, not the end.
  signal(SIGXFSZ, SIG_IGN);

  watch::WatchOptions options;
  if (args.supervisor == 0) options.abandon_ns = kAbandonNs;
  auto watcher = watch::Watcher::Open(run, options);
  if (!watcher.ok()) return Fail("watch", watcher.status());
  ReportKeeper keeper(program, run);
  ExporterKeeper exporter(program, run, args.otlp);
  WindowsKeeper windows(program, run);
  while (true) {
    const auto over = (*watcher)->Poll();
    if (!over.ok()) return Fail("watch", over.status());
    if (*over) {
      keeper.Stop();
      exporter.Stop();
      windows.Finish();
      // The supervisor writes it when we have ended, unless it has ended before us.
      if (args.supervisor == 0 || ::getppid() != args.supervisor) WriteLastReport(run);
      return 0;
    }
    keeper.Tick();
    exporter.Tick();
    windows.Tick();
    const timespec pause{0, kPollNs};
    if (sigtimedwait(&stop, nullptr, &pause) > 0) {
      const Status stopped = (*watcher)->Stop();
      return stopped.ok() ? 0 : Fail("watch", stopped);
    }
  }
}

}  // namespace

void RegisterWatch(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "watch", "Run the rules beside a run that is being recorded",
                                 "  telltale watch telltale-runs/20261120-150412-train\n"
                                 "  telltale watch RUN --otlp http://127.0.0.1:4318",
                                 {0, 3, 8, 9});
  auto args = std::make_shared<WatchArgs>();
  AddOption(command, "RUN", args->run, "Run directory").Required();
  AddOption(command, "--otlp", args->otlp,
            "Push metrics to this OTLP/HTTP endpoint meanwhile, as `export otlp` does");
  AddPythonRulesFlag(command);
  AddActionsFlag(command);
  AddOption(command, "--supervisor", args->supervisor, "Pid of the supervisor").Hidden();
  OnRun(command, context, [args, context] { return Watch(*args, context->program); });
}

}  // namespace telltale::cli
