// SPDX-License-Identifier: Apache-2.0
// A process ends while it is being stopped, and the kernel gives its number to somebody else: that
// one is never signalled. In a space of pids of our own, where a number can be asked for.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "agent/stopper.h"
#include "base/process.h"
#include "base/unique_fd.h"

namespace telltale {
namespace {

constexpr int kRounds = 100;
constexpr pid_t kNumber = 300;  ///< That both get.

// Exit codes of the process in which the test runs.
constexpr int kGood = 0;
constexpr int kWrongProcess = 1;  ///< Who got the number was signalled.
constexpr int kTrouble = 2;       ///< The test itself failed.
constexpr int kNotAllowed = 77;

/// struct clone_args of Linux 5.5 and newer.
struct CloneArguments {
  std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
  std::uint64_t set_tid, set_tid_size, cgroup;
};

/// fork() whose child has this number; -1 with errno.
pid_t ForkAs(pid_t number) {
  CloneArguments arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uint64_t>(&number);
  arguments.set_tid_size = 1;
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

/// A child of this number that waits for ever, with the usual dispositions.
pid_t Wait(pid_t number) {
  const pid_t child = ForkAs(number);
  if (child != 0) return child;
  ::signal(SIGTERM, SIG_DFL);
  while (true) ::pause();
}

/// Stops, SIGKILL included, a process that is gone when its turn comes; its number has another one
/// by then. Journal and decision are real, the signals too.
int Round() {
  const pid_t first = Wait(kNumber);
  if (first < 0) return errno == EPERM || errno == ENOSYS ? kNotAllowed : kTrouble;
  const UniqueFd pidfd = OpenPidfd(first);
  agent::Stopper stopper([](const agent::Stopper::Uuid&, std::uint16_t) { return 0; });
  agent::Outbox outbox;
  store::Request request;
  request.id[0] = 1;
  request.body = R"({"grace_seconds":0,"kill":true})";
  const std::vector<agent::Stopper::Target> targets = {{{1}, first, 0, pidfd.get(), false}};
  if (!stopper.Take(request, 1, &outbox).ok()) return kTrouble;
  stopper.Drained({{1}});
  stopper.Poll(targets, 1, &outbox);
  if (stopper.waits_for() == 0) return kTrouble;
  // The decision is made and journalled; now it ends, and its number is given away.
  if (::kill(first, SIGKILL) != 0 || ::waitpid(first, nullptr, 0) != first) return kTrouble;
  const pid_t second = Wait(kNumber);
  if (second != kNumber) return kTrouble;
  for (int tick = 2; tick < 6; ++tick) {
    stopper.Journalled(stopper.waits_for(), targets, tick, &outbox);
    stopper.Poll(targets, tick, &outbox);
  }
  // What was sent is there by now: to whom nothing was sent lives on, with nothing pending.
  siginfo_t info{};
  const bool untouched =
      ::waitid(P_PID, static_cast<id_t>(second), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == 0 && !PidfdEnded(OpenPidfd(second).get());
  if (::kill(second, SIGKILL) != 0) return kTrouble;
  int status = 0;
  if (::waitpid(second, &status, 0) != second) return kTrouble;
  // A SIGTERM that was on its way would have come before.
  return untouched && WTERMSIG(status) == SIGKILL ? kGood : kWrongProcess;
}

/// The first process of a new space of pids.
int Rounds() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < kRounds; ++i) {
    if (const int code = Round(); code != kGood) return code;
  }
  return kGood;
}

TEST(PidReuse, WhoGetsTheNumberOfAStoppedProcessIsNeverSignalled) {
  const pid_t outer = ::fork();
  ASSERT_GE(outer, 0);
  if (outer == 0) {
    // As root the second alone; else a space of users gives the right to it.
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
      ::_exit(kNotAllowed);
    }
    const pid_t inner = ::fork();
    if (inner == 0) ::_exit(Rounds());
    int status = 0;
    if (inner < 0 || ::waitpid(inner, &status, 0) != inner) ::_exit(kTrouble);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kTrouble);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) {
    GTEST_SKIP() << "this machine lets nobody ask for the number of a process";
  }
  EXPECT_EQ(WEXITSTATUS(status), kGood) << "1: a wrong process was signalled; 2: the test failed";
}

}  // namespace
}  // namespace telltale
