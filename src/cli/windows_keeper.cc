// SPDX-License-Identifier: Apache-2.0
#include "cli/windows_keeper.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/run_files.h"
#include "base/units.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLookPeriodNs = kSecond;
/// The supervisor waits half a minute for agent and watcher together.
constexpr std::int64_t kLastImportNs = 15 * kSecond;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

std::int64_t CpuOf(const rusage& usage) {
  const std::int64_t seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
  return seconds * kSecond + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * kUs;
}

}  // namespace

WindowsKeeper::WindowsKeeper(std::string program, fs::path run)
    : program_(std::move(program)), run_(std::move(run)) {}

void WindowsKeeper::Look() {
  // A folder changes with each file that is renamed into it.
  std::vector<run_files::Entry> entries;
  auto newest = changed_;
  run_files::List({run_, "windows"}, &entries);
  for (const run_files::Entry& entry : entries) {
    if (entry.name.starts_with('.')) continue;
    newest = std::max(newest, run_files::ChangedNs({run_, fs::path("windows") / entry.name}));
  }
  if (newest == changed_) return;
  changed_ = newest;
  schedule_.Changed(Now());
}

void WindowsKeeper::Start(bool all) {
  schedule_.Started();
  std::vector<std::string> command = {program_,      "import",   "--windows",
                                      run_.string(), "--beside", std::to_string(::getpid())};
  if (all) command.emplace_back("--all");
  auto child = run::SpawnHelper(command, run_ / "logs" / "watch.log", -1);
  if (child.ok()) {
    child_ = std::move(child).value();
  } else {
    schedule_.Done(Now(), 0, true);
  }
}

void WindowsKeeper::Reap(int options) {
  if (child_.pid <= 0) return;
  rusage usage{};
  int status = 0;
  const pid_t ended = ::wait4(child_.pid, &status, options, &usage);
  if (ended != child_.pid) {
    // Somebody else has reaped it: how it ended is not known, and the next may start.
    if (ended == -1 && errno == ECHILD) {
      child_ = {};
      schedule_.Done(Now(), 0, true);
    }
    return;
  }
  child_ = {};
  schedule_.Done(Now(), CpuOf(usage), !WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

void WindowsKeeper::Tick() {
  Reap(WNOHANG);
  const std::int64_t now = Now();
  if (now >= look_at_ns_) {
    look_at_ns_ = now + kLookPeriodNs;
    Look();
  }
  if (child_.pid <= 0 && schedule_.Due(now)) Start(false);
}

void WindowsKeeper::Finish() {
  Look();
  const std::int64_t until = Now() + kLastImportNs;
  const auto wait = [&] {
    while (child_.pid > 0 && Now() < until) {
      pollfd ended{.fd = child_.pidfd.get(), .events = POLLIN, .revents = 0};
      ::poll(&ended, 1, static_cast<int>((until - Now()) / kMs) + 1);
      Reap(WNOHANG);
    }
  };
  const bool running = child_.pid > 0;
  wait();
  if (child_.pid <= 0 && (running || schedule_.pending())) {
    Start(true);
    wait();
  }
  if (child_.pid <= 0) return;
  std::fprintf(stderr,
               "watch: windows of detail are left to import: telltale import --windows %s\n",
               run_.c_str());
  Stop();
}

void WindowsKeeper::Stop() {
  if (child_.pid <= 0) return;
  ::kill(child_.pid, SIGKILL);  // Our child and not reaped: the pid is its own.
  Reap(0);
}

}  // namespace telltale::cli
