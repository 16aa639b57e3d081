// SPDX-License-Identifier: Apache-2.0
// telltale watch RUN: runs the rules beside a run that is being recorded. `telltale run` starts it;
// by hand it serves where the run was recorded without a watcher or on another machine.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "watch/watcher.h"

namespace telltale::cli {
namespace {

constexpr long kPollNs = 100'000'000;

int Watch(const std::string& run) {
  // Waited for below, so that a signal ends the pause and never interrupts a write.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGHUP);
  sigprocmask(SIG_BLOCK, &stop, nullptr);

  auto watcher = watch::Watcher::Open(run);
  if (!watcher.ok()) return Fail("watch", watcher.status());
  while (true) {
    const auto over = (*watcher)->Poll();
    if (!over.ok()) return Fail("watch", over.status());
    if (*over) return 0;
    const timespec pause{0, kPollNs};
    if (sigtimedwait(&stop, nullptr, &pause) > 0) {
      const Status stopped = (*watcher)->Stop();
      return stopped.ok() ? 0 : Fail("watch", stopped);
    }
  }
}

}  // namespace

void RegisterWatch(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "watch", "Run the rules beside a run that is being recorded",
                 "  telltale watch telltale-runs/20261120-150412-train", {0, 3, 8, 9});
  auto run = std::make_shared<std::string>();
  command->add_option("RUN", *run, "Run directory")->required();
  OnRun(command, context, [run] { return Watch(*run); });
}

}  // namespace telltale::cli
