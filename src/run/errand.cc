// SPDX-License-Identifier: Apache-2.0
#include "run/errand.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"

namespace telltale::run {
namespace {

constexpr std::int64_t kRemovePatienceNs = 500 * kMs;
constexpr std::int64_t kWritePatienceNs = 300 * kMs;
constexpr int kMostFiles = 1 << 16;  ///< Looked at one by one where the kernel has no close_range.

#ifndef SYS_close_range
#define SYS_close_range 436  // Linux 5.9; one number on all architectures.
#endif

void CloseRange(unsigned first, unsigned last) {
  if (first > last || ::syscall(SYS_close_range, first, last, 0U) == 0) return;
  rlimit files{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &files) == 0;
  const auto most =
      static_cast<unsigned>(std::min<rlim_t>(known ? files.rlim_cur : 1024, kMostFiles));
  for (unsigned fd = first; fd <= std::min(last, most); ++fd) ::close(static_cast<int>(fd));
}

/// For a child that makes system calls alone. The handlers that libraries have for forks do not run
/// in it: Arrow's asks for memory, and where there is none that ends the child.
pid_t ForkBare() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  return ::_Fork();
#else
  return ::fork();
#endif
}

/// Signals that whoever ends all of a run sends to each of its processes.
constexpr int kForAll[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGTSTP};

/// In the child, before it does anything else.
void BeChild(const char* name, int link, std::vector<int> keep) {
  ::setsid();
  ::prctl(PR_SET_NAME, name);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (const int signal : kForAll) ::sigaction(signal, &ignore, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, stream);
  }
  keep.push_back(link);
  std::sort(keep.begin(), keep.end());
  unsigned from = STDERR_FILENO + 1;
  for (const int fd : keep) {
    if (fd < static_cast<int>(from)) continue;
    if (static_cast<unsigned>(fd) > from) CloseRange(from, static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  CloseRange(from, UINT_MAX);
  // The kernel takes what is ours first, as it does our helpers.
  if (const UniqueFd score(::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)); score) {
    char text[16] = {};
    if (::read(score.get(), text, sizeof text - 1) > 0) {
      const int raised =
          std::snprintf(text, sizeof text, "%d", std::min(std::atoi(text) + 300, 1000));
      [[maybe_unused]] const ssize_t n =
          ::pwrite(score.get(), text, static_cast<std::size_t>(raised), 0);
    }
  }
}

}  // namespace

StreamWriter::StreamWriter(int fd) : fd_(fd) {
  struct stat info {};
  is_file_ = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

bool StreamWriter::Ready() {
  if (is_file_) {
    if (writer_ > 0 && !ReapWithin(writer_, 0)) return false;
    writer_ = -1;
    return true;
  }
  // One that is closed, or that nobody can read any more, is: a write to it ends at once.
  pollfd out{fd_, POLLOUT, 0};
  return ::poll(&out, 1, 0) != 0;
}

bool StreamWriter::Write(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (!Ready()) return false;
  // Of a pipe that is Ready so much finds room; in one write, so that the kernel does not let the
  // training's output in between.
  const std::size_t most = is_file_ ? bytes.size() : std::size_t{PIPE_BUF};
  const auto write = [&] {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), most));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(n));
      if (!is_file_ && !Ready()) return;
    }
  };
  if (is_file_) writer_ = ForkBare();
  if (writer_ == 0) {
    ::setsid();
    // No other stream of the user's is its to hold.
    if (fd_ > 0) CloseRange(0, static_cast<unsigned>(fd_) - 1);
    CloseFrom(fd_ + 1);
    write();
    ::_exit(0);
  }
  if (writer_ < 0) {
    write();
  } else if (ReapWithin(writer_, kWritePatienceNs)) {
    writer_ = -1;
  }
  return true;
}

void StreamWriter::Print(std::string_view lines) {
  const auto count = static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n')) + 1;
  const std::uint64_t before = left_out_;
  // Where it takes nothing that is found out before any memory is asked for.
  if (!Ready() || !Write(fmt::format("{}{}\n", LeftOut(), lines))) left_out_ = before + count;
}

std::string StreamWriter::LeftOut() {
  const std::uint64_t count = std::exchange(left_out_, 0);
  if (count == 0) return {};
  return fmt::format("telltale: {} of Telltale {} missing here: nothing could be written\n",
                     count == 1 ? "1 line" : fmt::format("{} lines", count),
                     count == 1 ? "is" : "are");
}

void StreamWriter::Swap(StreamWriter* other) {
  std::swap(fd_, other->fd_);
  std::swap(is_file_, other->is_file_);
  std::swap(writer_, other->writer_);
  std::swap(left_out_, other->left_out_);
}

bool EndsWithin(const std::function<void()>& touch, std::int64_t patience_ns) {
  constexpr int kMostKilled = 3;
  // A child that is left behind would be a child of the training, where that takes our place: so
  // another one is between.
  for (int tries = 0; tries < kMostKilled; ++tries) {
    auto between = Errand::Start("telltale-ask", [&](int) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        touch();
        ::_exit(0);
      }
      return pid < 0 || ReapWithin(pid, patience_ns) ? 0 : 1;
    });
    if (!between.ok()) return true;
    const auto exit = between->Await(patience_ns + kSecond);
    if (!exit) {
      between->Signal(SIGKILL);
      static_cast<void>(between->Await(kSecond));
      return false;
    }
    if (exit->exit_code) return *exit->exit_code == 0;
    // Somebody has killed it (no memory): that says nothing of the disk.
  }
  return true;
}

void CloseFrom(int first) { CloseRange(static_cast<unsigned>(first), UINT_MAX); }

Result<Errand> Errand::Start(const char* name, const Work& work, std::initializer_list<int> keep) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return Status(Code::kLimit, fmt::format("cannot make a link to a process of ours: {}: free "
                                            "descriptors",
                                            std::strerror(errno)));
  }
  Errand errand;
  errand.link_.reset(pair[0]);
  UniqueFd theirs(pair[1]);
  ::fcntl(pair[0], F_SETFL, O_NONBLOCK);
  const std::vector<int> kept(keep);
  errand.pid_ = ::fork();
  if (errand.pid_ < 0) {
    return Status(Code::kLimit, fmt::format("cannot start a process of ours: fork failed: {}: free "
                                            "processes or memory and retry",
                                            std::strerror(errno)));
  }
  if (errand.pid_ == 0) {
    // Nothing may leave this: the caller's frames are the parent's.
    int code = 1;
    try {
      BeChild(name, theirs.get(), kept);
      code = work(theirs.get());
    } catch (const std::exception&) {
      // No memory: who has started it sees that it ended.
    }
    ::_exit(code);
  }
  return errand;
}

std::optional<ProcessExit> Errand::Exit() {
  int status = 0;
  if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_ = FromWaitStatus(status);
    pid_ = -1;
  }
  return exit_;
}

std::optional<ProcessExit> Errand::Await(std::int64_t patience_ns) {
  const std::int64_t deadline = Clock::System().MonotonicNs() + patience_ns;
  while (started() && !Exit() && Clock::System().MonotonicNs() < deadline) {
    const timespec pause{0, kMs};
    ::nanosleep(&pause, nullptr);
  }
  return exit_;
}

void Errand::Signal(int signal) {
  if (pid_ > 0) ::kill(pid_, signal);  // Our child and not reaped: the pid is its own.
}

void Errand::Leave() {
  link_.reset();
  static_cast<void>(Exit());
  pid_ = -1;
}

void Errand::Swap(Errand* other) {
  std::swap(pid_, other->pid_);
  std::swap(link_, other->link_);
  std::swap(exit_, other->exit_);
}

bool ReapWithin(pid_t pid, std::int64_t patience_ns) {
  const std::int64_t deadline = Clock::System().MonotonicNs() + patience_ns;
  while (true) {
    const pid_t got = ::waitpid(pid, nullptr, WNOHANG);
    if (got == pid || (got < 0 && errno == ECHILD)) return true;
    if (Clock::System().MonotonicNs() >= deadline) return false;
    const timespec pause{0, kMs};
    ::nanosleep(&pause, nullptr);
  }
}

void RemoveWithFolder(const char* file, const char* folder) {
  const pid_t pid = ForkBare();
  if (pid == 0) {
    CloseFrom(0);
    ::unlink(file);
    ::rmdir(folder);
    ::_exit(0);
  }
  if (pid > 0) {
    ReapWithin(pid, kRemovePatienceNs);
    return;
  }
  ::unlink(file);
  ::rmdir(folder);
}

}  // namespace telltale::run
