// SPDX-License-Identifier: Apache-2.0
#include "cli/report_keeper.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/clock.h"

namespace telltale::cli {
namespace {

std::int64_t Now() { return Clock::System().MonotonicNs(); }

std::int64_t CpuNs(const rusage& usage) {
  const auto ns = [](const timeval& t) {
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_usec * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

}  // namespace

ReportKeeper::ReportKeeper(std::string program, std::filesystem::path run)
    : program_(std::move(program)), run_(std::move(run)), schedule_(Now()) {}

void ReportKeeper::Reap(int options) {
  if (child_.pid <= 0) return;
  rusage usage{};
  if (::wait4(child_.pid, nullptr, options, &usage) != child_.pid) return;
  child_ = {};
  schedule_.Done(Now(), CpuNs(usage));
}

void ReportKeeper::Tick() {
  Reap(WNOHANG);
  if (child_.pid > 0 || !schedule_.Due(Now())) return;
  auto child =
      run::SpawnHelper({program_, "report", run_.string(), "--beside", std::to_string(::getpid())},
                       run_ / "logs" / "watch.log", -1);
  // Whatever hinders it, the next one is tried when it is due.
  if (child.ok() && child->exec_errno == 0) {
    child_ = std::move(child).value();
  } else {
    schedule_.Done(Now(), 0);
  }
}

void ReportKeeper::Stop() {
  if (child_.pid <= 0) return;
  ::kill(child_.pid, SIGKILL);  // Our child and not reaped: the pid is its own.
  Reap(0);
}

bool BecomeReportChild(int parent_pid) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
  // ioprio_set(IOPRIO_WHO_PROCESS, this thread, IOPRIO_CLASS_IDLE << 13); glibc has no wrapper.
  ::syscall(SYS_ioprio_set, 1, 0, 3 << 13);
  return ::getppid() == parent_pid;
}

}  // namespace telltale::cli
