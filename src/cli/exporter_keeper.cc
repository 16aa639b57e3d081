// SPDX-License-Identifier: Apache-2.0
#include "cli/exporter_keeper.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/clock.h"

namespace telltale::cli {
namespace {

constexpr std::int64_t kAgainNs = 30'000'000'000;
constexpr int kLastPushMs = 2'500;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

}  // namespace

ExporterKeeper::ExporterKeeper(std::string program, std::filesystem::path run, std::string endpoint)
    : program_(std::move(program)), run_(std::move(run)), endpoint_(std::move(endpoint)) {}

void ExporterKeeper::Reap() {
  if (child_.pid <= 0) return;
  int status = 0;
  if (::waitpid(child_.pid, &status, WNOHANG) != child_.pid) return;
  child_ = {};
  start_at_ns_ = Now() + kAgainNs;
  // It has tried for as long as is sensible, or the receiver will never take it; its log says why.
  constexpr int kNotStarted = 126;
  hopeless_ = WIFEXITED(status) && WEXITSTATUS(status) != kNotStarted;
}

void ExporterKeeper::Tick() {
  if (endpoint_.empty()) return;
  Reap();
  if (child_.pid > 0 || hopeless_ || Now() < start_at_ns_) return;
  auto child = run::SpawnHelper({program_, "export", "otlp", run_.string(), "--endpoint", endpoint_,
                                 "--follow", "--parent", std::to_string(::getpid())},
                                run_ / "logs" / "export.log", -1);
  // Whatever hinders it, it is tried again.
  start_at_ns_ = Now() + kAgainNs;
  if (child.ok()) child_ = std::move(child).value();
}

void ExporterKeeper::Stop() {
  Reap();
  if (child_.pid <= 0) return;
  ::kill(child_.pid, SIGTERM);  // Our child and not reaped: the pid is its own.
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  ::poll(&ended, 1, kLastPushMs);
  Reap();
  // One that is still at it ends by itself: a last push is bounded.
  child_ = {};
}

}  // namespace telltale::cli
