// SPDX-License-Identifier: Apache-2.0
#include "rules/rule_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/process.h"

namespace telltale::rules {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  // posix_spawn takes pointers that are not const and leaves what they point to alone.
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

/// What the child begins with: no signal blocked or ignored, a group of its own, so that neither
/// the terminal's Ctrl-C nor our own handlers are its business.
class SpawnSetup {
 public:
  SpawnSetup(int line, const std::string& log) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO,
                                       log.empty() ? "/dev/null" : log.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, line, RuleProcess::kChildFd);
    sigset_t none;
    sigset_t usual;
    ::sigemptyset(&none);
    ::sigemptyset(&usual);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGXCPU, SIGQUIT}) {
      ::sigaddset(&usual, signal);
    }
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &usual);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

std::int64_t Now() { return Clock::System().MonotonicNs(); }

}  // namespace

Result<std::unique_ptr<RuleProcess>> RuleProcess::Start(const std::vector<std::string>& command,
                                                        const std::vector<std::string>& environment,
                                                        const std::string& log) {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return Status(Code::kIo, fmt::format("no socket for a rule: {}", std::strerror(errno)));
  }
  UniqueFd ours(ends[0]);
  const UniqueFd low(ends[1]);
  // Above those that the child's own take.
  const UniqueFd theirs(::fcntl(low.get(), F_DUPFD_CLOEXEC, 16));
  if (!theirs || ::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) {
    return Status(Code::kIo, fmt::format("no socket for a rule: {}", std::strerror(errno)));
  }
  const SpawnSetup setup(theirs.get(), log);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, command.front().c_str(), setup.actions(), setup.attributes(),
                     Pointers(command).data(), Pointers(environment).data());
  if (error != 0) {
    return Status(Code::kUsage,
                  fmt::format("{} cannot be started: {}", command.front(), std::strerror(error)));
  }
  return std::unique_ptr<RuleProcess>(new RuleProcess(pid, OpenPidfd(pid), std::move(ours)));
}

RuleProcess::~RuleProcess() {
  line_.reset();
  // A number that nobody has waited for yet is still this child's, and so is its group's, also
  // where it has ended and what it started goes on. Where that fails somebody else has reaped it (a
  // parent that reaps all), and the number may be another's.
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
  // It ends what it has started, also what has left its group.
  ::kill(pid_, SIGTERM);
  AwaitEnd(kPatienceNs);
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // It may have left its group.
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

Status RuleProcess::WaitFor(short events, std::int64_t deadline_ns) {
  while (true) {
    const std::int64_t left_ns = deadline_ns - Now();
    if (left_ns <= 0) return Status(Code::kLimit, "it took too long");
    pollfd wait{line_.get(), events, 0};
    const auto left_ms = std::min<std::int64_t>(left_ns / 1'000'000 + 1, 60'000);
    const int found = ::poll(&wait, 1, static_cast<int>(left_ms));
    if (found > 0) return Status();
    if (found < 0 && errno != EINTR) {
      return Status(Code::kIo, fmt::format("poll: {}", std::strerror(errno)));
    }
  }
}

void RuleProcess::AwaitEnd(std::int64_t timeout_ns) const {
  if (!pidfd_) return;
  const std::int64_t deadline_ns = Now() + timeout_ns;
  pollfd wait{pidfd_.get(), POLLIN, 0};
  while (true) {
    const std::int64_t left_ms = (deadline_ns - Now()) / 1'000'000;
    if (left_ms <= 0) return;
    if (::poll(&wait, 1, static_cast<int>(left_ms)) >= 0 || errno != EINTR) return;
  }
}

Status RuleProcess::Ended() {
  // Its end of the line is closed: it goes, or has closed it and goes on, which is as bad.
  siginfo_t info{};
  AwaitEnd(1'000'000'000);
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return Status(Code::kUnusable, "it closed its line");
  }
  if (info.si_code == CLD_EXITED) {
    return Status(Code::kUnusable, fmt::format("it ended with exit code {}", info.si_status));
  }
  if (info.si_status == SIGXCPU) {
    return Status(Code::kUnusable, "it used up its processor time (signal SIGXCPU)");
  }
  return Status(Code::kUnusable, fmt::format("it was killed by signal {}", info.si_status));
}

Status RuleProcess::SendLine(std::string_view line, std::int64_t timeout_ns) {
  const std::int64_t deadline_ns = Now() + timeout_ns;
  std::string text(line);
  text += '\n';
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n =
        ::send(line_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TELLTALE_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline_ns));
    } else if (errno != EINTR) {
      return Ended();
    }
  }
  return Status();
}

Result<std::string> RuleProcess::ReadLine(std::int64_t timeout_ns) {
  const std::int64_t deadline_ns = Now() + timeout_ns;
  std::size_t searched = 0;
  while (true) {
    const std::size_t end = read_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    searched = read_.size();
    if (read_.size() > kMostLineBytes) return Status(Code::kLimit, "it wrote too long a line");
    std::array<char, 65536> buffer;
    const ssize_t n = ::recv(line_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      read_.append(buffer.data(), static_cast<std::size_t>(n));
    } else if (n == 0) {
      return Ended();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TELLTALE_RETURN_IF_ERROR(WaitFor(POLLIN, deadline_ns));
    } else if (errno != EINTR) {
      return Ended();
    }
  }
}

}  // namespace telltale::rules
