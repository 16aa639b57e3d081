// SPDX-License-Identifier: Apache-2.0
// Runs a program with the notice as JSON on its standard input: no shell, an environment of a few
// variables, a limit of time, its whole process group killed after that. Which programs may run is
// said by who runs Telltale (TELLTALE_PROGRAMS, /etc/telltale/programs), never by the rules file.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "rules/actions/act.h"
#include "rules/actions/kinds.h"

namespace telltale::rules {
namespace {

constexpr const char* kAllowedFile = "/etc/telltale/programs";
constexpr int kLookMs = 100;

bool Allowed(const std::string& program) {
  if (const char* list = std::getenv("TELLTALE_PROGRAMS")) {
    std::string_view rest = list;
    while (!rest.empty()) {
      const auto colon = std::min(rest.find(':'), rest.size());
      if (rest.substr(0, colon) == program) return true;
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
  }
  std::ifstream file(kAllowedFile);
  for (std::string line; std::getline(file, line);) {
    if (line == program) return true;
  }
  return false;
}

/// A file of memory that holds the text, to be read from its start.
UniqueFd InMemory(const std::string& text) {
  UniqueFd fd(::memfd_create("notice", MFD_CLOEXEC));
  std::size_t at = 0;
  while (fd && at < text.size()) {
    const ssize_t n = ::write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    at += static_cast<std::size_t>(n);
  }
  if (fd && ::lseek(fd.get(), 0, SEEK_SET) != 0) return {};
  return fd;
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

/// posix_spawn's attributes and file actions, freed at the end.
class Plan {
 public:
  Plan() {
    ok_ = ::posix_spawnattr_init(&attributes_) == 0;
    if (!ok_) return;
    if (::posix_spawn_file_actions_init(&actions_) != 0) {
      ::posix_spawnattr_destroy(&attributes_);
      ok_ = false;
      return;
    }
    sigset_t none;
    ::sigemptyset(&none);
    sigset_t standard;
    ::sigemptyset(&standard);
    for (const int s :
         {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2, SIGXFSZ}) {
      ::sigaddset(&standard, s);
    }
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &standard);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~Plan() {
    if (!ok_) return;
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool ok() const { return ok_; }
  bool Streams(int in, int out) {
    return ::posix_spawn_file_actions_adddup2(&actions_, in, STDIN_FILENO) == 0 &&
           ::posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO) == 0 &&
           ::posix_spawn_file_actions_adddup2(&actions_, out, STDERR_FILENO) == 0 &&
           // Also what somebody has opened without O_CLOEXEC.
           ::posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1) == 0;
  }
  const posix_spawnattr_t* attributes() const { return &attributes_; }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  bool ok_ = false;
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

}  // namespace

Result<std::string> ActProgram(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  const std::string program = ActionText(spec, "program");
  if (!Allowed(program)) {
    return Status(Code::kUsage,
                  fmt::format("'{}' is not allowed: name it in TELLTALE_PROGRAMS where the run is "
                              "started, or in {}",
                              Printable(program), kAllowedFile));
  }
  std::vector<std::string> words = {program};
  for (std::string& word : ActionList(spec, "arguments")) words.push_back(std::move(word));
  std::vector<std::string> environment;
  for (const char* name : {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER"}) {
    if (const char* value = std::getenv(name)) {
      environment.push_back(fmt::format("{}={}", name, value));
    }
  }
  const Finding& first = notice.findings.front();
  environment.push_back("TELLTALE_KEY=" + notice.key);
  environment.push_back("TELLTALE_RUN=" + notice.path);
  environment.push_back("TELLTALE_RULE=" + OneLine(first.rule, 200));
  environment.push_back("TELLTALE_INCIDENT=" + first.id);
  environment.push_back("TELLTALE_SEVERITY=" + std::string(Name(first.incident.severity)));

  const UniqueFd in = InMemory(NoticeJson(notice));
  UniqueFd out;
  if (!at.run.empty()) {
    out = run_files::OpenToWrite({at.run, "logs/actions.log"}, run_files::Writing::kAppended);
  }
  if (!out) out.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Plan plan;
  if (!in || !out || !plan.ok() || !plan.Streams(in.get(), out.get())) {
    return Status(Code::kLimit, "cannot prepare to start it: no memory or no descriptor is left");
  }
  std::vector<char*> argv = Pointers(words);
  std::vector<char*> envp = Pointers(environment);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), plan.actions(), plan.attributes(),
                                  argv.data(), envp.data());
  if (error != 0) {
    return Status(Code::kUsage, fmt::format("'{}' cannot be started: {}", Printable(program),
                                            std::strerror(error)));
  }
  const double timeout = ActionNumber(spec, "timeout");
  const std::int64_t deadline =
      Clock::System().MonotonicNs() + static_cast<std::int64_t>(timeout * 1e9);
  const UniqueFd pidfd = OpenPidfd(pid);
  bool killed = false;
  int status = 0;
  while (true) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) return Status(Code::kIo, "how it ended is not known");
    if (!killed && (Clock::System().MonotonicNs() >= deadline || at.stop->load())) {
      // Our child and not reaped, and the group is its own: the number is theirs.
      ::kill(-pid, SIGKILL);
      ::kill(pid, SIGKILL);
      killed = true;
    }
    pollfd wait{pidfd.get(), POLLIN, 0};
    ::poll(&wait, pidfd ? 1 : 0, kLookMs);
  }
  if (killed) {
    return Status(Code::kLimit,
                  fmt::format("it did not end within {:g} s and was killed", timeout));
  }
  const ProcessExit exit = FromWaitStatus(status);
  if (exit.signal) return Status(Code::kIo, fmt::format("it was ended by signal {}", *exit.signal));
  if (exit.exit_code.value_or(1) != 0) {
    return Status(Code::kIo, fmt::format("it ended with exit code {}", exit.exit_code.value_or(1)));
  }
  return std::string("it ended with exit code 0");
}

}  // namespace telltale::rules
