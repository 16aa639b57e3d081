// SPDX-License-Identifier: Apache-2.0
// telltale agent: the recording process that `telltale run` starts beside the training.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "agent/agent.h"
#include "base/heap.h"
#include "cli/command.h"
#include "plan/capture_plan.h"
#include "store/requests.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

struct Args {
  std::string run;
  int fd = -1;
  std::string socket;
  int supervisor = 0;  ///< Its pid.
  std::int64_t interval_ms = 500;
  std::int64_t gap_from_ns = 0;
  double overhead = 0.01;
  std::uint64_t look_back_bytes = agent::kLookBackBytes;
};

/// What one tick frees the next one needs; on a large node to have it cleared anew costs more than
/// to fill it.
constexpr int kHeapBlock = 4 << 20;
constexpr int kHeapKept = 8 << 20;

Status Run(const Args& args) {
  if (::fcntl(args.fd, F_SETFD, FD_CLOEXEC) != 0) {
    return {Code::kUsage, fmt::format("descriptor {} is not open: the agent is started by "
                                      "`telltale run`, not by hand",
                                      args.fd)};
  }
  KeepFreedMemory(kHeapBlock, kHeapKept);
  // A write past a limit of the file's size is an error to handle, not the end.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  agent::AgentOptions options;
  options.run = args.run;
  options.link.reset(args.fd);
  options.socket = args.socket;
  options.supervisor = args.supervisor;
  options.interval_ms = args.interval_ms;
  options.gap_from_monotonic_ns = args.gap_from_ns;
  options.overhead_budget = args.overhead;
  options.look_back_bytes = args.look_back_bytes;
  // For tests and measurements: a machine made of files.
  if (const char* root = std::getenv("TELLTALE_SYSTEM_ROOT")) options.system_root = root;
  // Where run.json cannot be read the training is recorded all the same.
  if (const auto info = store::ReadRunInfo(args.run); info.ok()) {
    if (!info->plan.empty()) {
      TELLTALE_ASSIGN_OR_RETURN(options.plan, plan::FromJson(info->plan));
    }
    options.attempt = store::NewestAttempt(*info);
    if (!info->attempts.empty()) options.attempt_start_ns = info->attempts.back().start_ns;
  }
  return agent::RunAgent(std::move(options));
}

}  // namespace

void RegisterAgent(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "agent", "Record for `telltale run` (started by it)", "", {0, 3, 8, 9});
  Hide(command);
  auto args = std::make_shared<Args>();
  AddOption(command, "--run", args->run, "Run directory").Required();
  AddOption(command, "--fd", args->fd, "Descriptor of the supervisor's socket").Required();
  AddOption(command, "--socket", args->socket, "The supervisor's, removed should it be killed");
  AddOption(command, "--supervisor", args->supervisor, "Pid of the supervisor");
  AddOption(command, "--interval", args->interval_ms, "Milliseconds between samples");
  AddOption(command, "--overhead", args->overhead, "Budget of step time, as a fraction");
  AddOption(command, "--look-back", args->look_back_bytes, "Bytes of the look-back ring");
  AddOption(command, "--gap-from", args->gap_from_ns, "When the agent before died");
  OnRunStatus(command, context, [args] { return Run(*args); });
}

}  // namespace telltale::cli
