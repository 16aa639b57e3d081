// SPDX-License-Identifier: Apache-2.0
#include "cli/report_keeper.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "report/html.h"

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
    : program_(std::move(program)), run_(std::move(run)), schedule_(Now()) {
  // Of a report whose writer was killed together with the watcher before us.
  std::vector<run_files::Entry> entries;
  run_files::List({run_, "."}, &entries);
  for (const run_files::Entry& entry : entries) {
    int pid = 0;
    int length = 0;
    const std::string& name = entry.name;
    if (std::sscanf(name.c_str(), "report.html.%d.tmp%n", &pid, &length) != 1 || pid <= 0 ||
        length != static_cast<int>(name.size()) || ::kill(pid, 0) == 0 || errno != ESRCH) {
      continue;
    }
    run_files::Remove({run_, name});
  }
}

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
  if (child.ok()) {
    child_ = std::move(child).value();
  } else {
    schedule_.Done(Now(), 0);
  }
}

void ReportKeeper::Stop() {
  if (child_.pid <= 0) return;
  const int pid = child_.pid;
  ::kill(pid, SIGKILL);  // Our child and not reaped: the pid is its own.
  Reap(0);
  run_files::Remove(run_files::OfRun(report::PartialPath(run_ / "report.html", pid)));
}

bool BecomeReportChild(int parent_pid) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Where sessions share the cores (autogroup) a priority counts only among the processes of one,
  // and ours has a session of its own.
  if (const UniqueFd group(::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC)); group) {
    [[maybe_unused]] const ssize_t wrote = ::write(group.get(), "19", 2);
  }
  ::setpriority(PRIO_PROCESS, 0, 19);
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
  // ioprio_set(IOPRIO_WHO_PROCESS, this thread, IOPRIO_CLASS_IDLE << 13); glibc has no wrapper.
  ::syscall(SYS_ioprio_set, 1, 0, 3 << 13);
  return ::getppid() == parent_pid;
}

}  // namespace telltale::cli
