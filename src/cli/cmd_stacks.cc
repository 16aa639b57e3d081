// SPDX-License-Identifier: Apache-2.0
// telltale stacks RUN: samples the Python stacks of a run that is being recorded. `telltale run
// --stacks` starts it.
#include <signal.h>
#include <time.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "stacks/sampler.h"

namespace telltale::cli {
namespace {

constexpr long kPollNs = 100'000'000;

struct Args {
  std::string run;
  stacks::SamplerOptions options;
};

int Sample(const Args& args) {
  // Waited for below, so that a signal ends the pause and never interrupts a write.
  sigset_t stop;
  sigemptyset(&stop);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop, signal);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGCHLD, SIG_DFL);

  auto sampler = stacks::Sampler::Open(args.run, args.options);
  if (!sampler.ok()) return Fail("stacks", sampler.status());
  while (true) {
    const auto over = (*sampler)->Poll();
    if (!over.ok()) return Fail("stacks", over.status());
    if (*over) return 0;
    const timespec pause{0, kPollNs};
    if (sigtimedwait(&stop, nullptr, &pause) > 0) {
      const Status stopped = (*sampler)->Stop();
      return stopped.ok() ? 0 : Fail("stacks", stopped);
    }
  }
}

}  // namespace

void RegisterStacks(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "stacks", "Sample Python stacks for `telltale run --stacks`",
                                 "", {0, 3, 8, 9});
  Hide(command);
  auto args = std::make_shared<Args>();
  AddOption(command, "RUN", args->run, "Run directory").Required();
  AddOption(command, "--rate", args->options.rate, "Samples a second").Between(1, 100);
  AddOption(command, "--piece", args->options.piece_seconds, "Seconds of a piece").Between(1, 600);
  AddOption(command, "--overhead", args->options.overhead_budget,
            "Budget of step time, as a fraction");
  AddFlag(command, "--pause", args->options.pause, "Stop the process while its stack is read");
  AddFlag(command, "--native", args->options.native, "Frames of C and C++ too");
  OnRun(command, context, [args] { return Sample(*args); });
}

}  // namespace telltale::cli
