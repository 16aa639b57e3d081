// SPDX-License-Identifier: Apache-2.0
// Starts the training and our helpers. Between fork and exec a child of the training makes
// async-signal-safe calls alone; that of a helper opens its log, which needs memory, and goes
// without one where that cannot be had.
#include "run/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>

#include "base/process.h"
#include "base/run_files.h"
#include "base/units.h"
#include "run/errand.h"

namespace telltale::run {
namespace {

constexpr int kOomScoreStep = 300;
constexpr std::int64_t kReapPatienceNs = kSecond;

Status ForkFailed(const std::string& program) {
  return {Code::kLimit, fmt::format("cannot start '{}': fork failed: {}: free processes or memory "
                                    "and retry",
                                    program, std::strerror(errno))};
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

/// Writes our oom_score_adj plus a step, so the kernel takes the helper first.
void RaiseOomScore(const char* text) {
  const int fd = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t n = ::write(fd, text, std::strlen(text));
  ::close(fd);
}

std::string HelperOomScore() {
  char text[16] = {};
  const UniqueFd fd(::open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC));
  if (fd && ::read(fd.get(), text, sizeof text - 1) < 0) text[0] = '\0';
  return std::to_string(std::min(std::atoi(text) + kOomScoreStep, 1000));
}

/// In the child. A log that cannot be opened (disk full, no memory) is no reason to go without the
/// helper; and nothing may leave the child by an exception: its caller's frames are the parent's.
UniqueFd OpenLog(const run_files::RunPath& path) noexcept {
  try {
    return run_files::OpenToWrite(path, run_files::Writing::kAppended);
  } catch (const std::exception&) {
    return {};
  }
}

/// 0, or errno.
int GiveBack(const GivenSignals& given) {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  if (given.children_ignored) ::sigaction(SIGCHLD, &action, nullptr);
  action.sa_handler = SIG_DFL;
  if (!given.large_files_ignored) ::sigaction(SIGXFSZ, &action, nullptr);
  if (given.core) ::setrlimit(RLIMIT_CORE, &*given.core);
  return ::sigprocmask(SIG_SETMASK, &given.mask, nullptr) == 0 ? 0 : errno;
}

}  // namespace

GivenSignals TakeSignals() {
  GivenSignals given;
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &pipe, &given.mask);
  struct sigaction standard {};
  struct sigaction before {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &standard, &before);
  given.children_ignored = before.sa_handler == SIG_IGN;
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &before);
  given.large_files_ignored = before.sa_handler == SIG_IGN;
  rlimit core{};
  if (::getrlimit(RLIMIT_CORE, &core) == 0) {
    given.core = core;
    core.rlim_cur = std::min<rlim_t>(core.rlim_max, 1);  // As LeaveNoCore.
    ::setrlimit(RLIMIT_CORE, &core);
  }
  return given;
}

Result<Child> SpawnTraining(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment, const GivenSignals& given,
                            const rlimit& files) {
  std::vector<char*> envp = Pointers(environment);
  std::vector<char*> argv = Pointers(command);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) {
    return Status(Code::kIo, fmt::format("cannot make a pipe to start '{}': {}", command[0],
                                         std::strerror(errno)));
  }
  UniqueFd read_end(report[0]);
  UniqueFd write_end(report[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return ForkFailed(command[0]);
  if (pid == 0) {
    ::setrlimit(RLIMIT_NOFILE, &files);
    int error = GiveBack(given);
    if (error == 0) {
      ::execvpe(argv[0], argv.data(), envp.data());
      error = errno;
    }
    [[maybe_unused]] const ssize_t n = ::write(write_end.get(), &error, sizeof error);
    ::_exit(error == ENOENT ? 127 : 126);
  }
  Child child;
  child.pid = pid;
  child.pidfd = OpenPidfd(pid);
  write_end.reset();
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(read_end.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    child.exec_errno = error;
    ::waitpid(pid, nullptr, 0);
    child.pid = -1;
  }
  return child;
}

int BecomeTraining(const std::vector<std::string>& command, const GivenSignals& given) {
  std::vector<char*> argv = Pointers(command);
  // One that a line of ours to a closed pipe has left pending would survive the exec.
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  const timespec none{};
  while (::sigtimedwait(&pipe, nullptr, &none) == SIGPIPE) {
  }
  if (const int error = GiveBack(given); error != 0) return error;
  ::unsetenv(kActionsAgreed);  // NOLINT(concurrency-mt-unsafe): an exec follows.
  ::execvp(argv[0], argv.data());
  return errno;
}

Result<Child> SpawnHelper(const std::vector<std::string>& command, const std::filesystem::path& log,
                          int inherited) {
  std::vector<char*> argv = Pointers(command);
  const run_files::RunPath log_path = run_files::OfFolder(log);
  const std::string score = HelperOomScore();
  const pid_t pid = ::fork();
  if (pid < 0) return ForkFailed(command[0]);
  if (pid == 0) {
    ::setsid();
    LeaveNoCore();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) {
      ::sigaction(signal, &standard, nullptr);
    }
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGXFSZ, &ignore, nullptr);
    RaiseOomScore(score.c_str());
    // Nothing of ours, nor of the user's, is there any more when a disk is asked for the log.
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    bool ready = null >= 0;
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      ready = ready && ::dup2(null, stream) >= 0;
    }
    if (inherited == kInheritedFd) {
      ready = ready && ::fcntl(inherited, F_SETFD, 0) == 0;
    } else if (inherited >= 0) {
      ready = ready && ::dup2(inherited, kInheritedFd) >= 0;
    }
    CloseFrom(inherited < 0 ? kInheritedFd : kInheritedFd + 1);
    if (const UniqueFd out = OpenLog(log_path)) {
      ::dup2(out.get(), STDOUT_FILENO);
      ::dup2(out.get(), STDERR_FILENO);
    }
    if (ready) ::execvpe(argv[0], argv.data(), environ);
    ::_exit(126);
  }
  Child child;
  child.pid = pid;
  child.pidfd = OpenPidfd(pid);
  if (!child.pidfd) {
    const int why = errno;
    ::kill(pid, SIGKILL);  // Our child and not reaped: the pid is its own.
    ReapWithin(pid, kReapPatienceNs);
    return Status(Code::kLimit, fmt::format("cannot watch '{}': pidfd_open failed: {}: Telltale "
                                            "needs Linux 5.3 or later and a free descriptor",
                                            command[0], std::strerror(why)));
  }
  return child;
}

}  // namespace telltale::run
