// SPDX-License-Identifier: Apache-2.0
#include "stacks/py_spy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"

namespace telltale::stacks {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "py-spy";
constexpr rlim_t kMostOutputBytes = 64 << 20;
constexpr std::uint64_t kMostLogBytes = 64 << 10;
constexpr int kNiceness = 5;

fs::path Usable(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0 ? path : fs::path();
}

/// Where the shell would find `word`.
fs::path InPath(std::string_view word) {
  const char* const path = std::getenv("PATH");
  for (std::string_view left = path == nullptr ? "" : path; !left.empty();) {
    const std::size_t end = left.find(':');
    if (fs::path found = Usable(fs::path(left.substr(0, end)) / word); !found.empty()) return found;
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
  }
  return {};
}

std::string LastLine(std::string_view text) {
  // Of a panic or an error with a trace the first line says what it was.
  if (const std::size_t at = text.find("Error: "); at != std::string_view::npos) {
    text = text.substr(at);
    text = text.substr(0, text.find('\n'));
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  if (const std::size_t at = text.rfind('\n'); at != std::string_view::npos) {
    text.remove_prefix(at + 1);
  }
  return std::string(text.substr(0, 300));
}

}  // namespace

fs::path FindPySpy(std::string_view command) {
  if (const char* const named = std::getenv("TELLTALE_PY_SPY")) return Usable(named);
  const fs::path word(command);
  const fs::path program = word.has_parent_path() ? word : InPath(command);
  if (!program.empty()) {
    if (fs::path found = Usable(program.parent_path() / kName); !found.empty()) return found;
  }
  if (const char* const environment = std::getenv("VIRTUAL_ENV")) {
    if (fs::path found = Usable(fs::path(environment) / "bin" / kName); !found.empty()) {
      return found;
    }
  }
  return InPath(kName);
}

std::string WhyNotReadable() {
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return std::strerror(errno);
  const UniqueFd read_end(ready[0]);
  UniqueFd write_end(ready[1]);
  static volatile int probe = 4711;
  const pid_t child = ::fork();
  if (child < 0) return std::strerror(errno);
  if (child == 0) {
    // Lives until the other end is closed.
    write_end.reset();
    char nothing = 0;
    [[maybe_unused]] const ssize_t n = ::read(read_end.get(), &nothing, 1);
    ::_exit(0);
  }
  int copy = 0;
  iovec local{&copy, sizeof copy};
  iovec remote{const_cast<int*>(&probe), sizeof copy};
  const ssize_t n = ::process_vm_readv(child, &local, 1, &remote, 1, 0);
  const std::string why = n == sizeof copy && copy == 4711 ? "" : std::strerror(errno);
  write_end.reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return why;
}

void ReadWords(std::string_view log, PySpyEnd* end) {
  const auto says = [&](std::string_view words) {
    return log.find(words) != std::string_view::npos;
  };
  end->refused = says("Permission Denied") || says("Operation not permitted") ||
                 says("Permission denied (os error 13)");
  end->no_python =
      !end->refused && (says("No python processes found") || says("Failed to find python") ||
                        says("No such process") || says("No such file or directory") ||
                        says("Failed to copy") || says("Bad address"));
  end->words = LastLine(log);
  constexpr std::string_view kErrors = "Errors: ";
  if (const std::size_t at = log.rfind(kErrors); at != std::string_view::npos) {
    const std::string_view digits = log.substr(at + kErrors.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), end->errors);
  }
}

Result<PySpyChild> PySpyChild::Start(const PySpyOptions& options) {
  std::vector<std::string> words = {options.program.string(),
                                    "record",
                                    "--pid",
                                    std::to_string(options.target),
                                    "--subprocesses",
                                    "--threads",
                                    "--idle",
                                    "--function",
                                    "--full-filenames",
                                    "--rate",
                                    std::to_string(options.rate),
                                    "--duration",
                                    std::to_string(options.seconds),
                                    "--format",
                                    "chrometrace",
                                    "--output",
                                    options.output.string()};
  if (options.native) words.emplace_back("--native");
  if (!options.pause && !options.native) words.emplace_back("--nonblocking");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd log =
      run_files::OpenToWrite(run_files::OfSubfolder(options.log), run_files::Writing::kFresh);
  if (!log) log.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const pid_t parent = ::getpid();
  PySpyChild child;
  child.options_ = options;
  child.started_ns_ = Clock::System().MonotonicNs();
  child.pid_ = ::fork();
  if (child.pid_ < 0) {
    return {Code::kLimit,
            fmt::format("cannot start {}: fork failed: {}", words[0], std::strerror(errno))};
  }
  if (child.pid_ == 0) {
    // Only async-signal-safe calls: the journal's writer has threads.
    ::prctl(PR_SET_PDEATHSIG, SIGINT);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const rlimit output{kMostOutputBytes, kMostOutputBytes};
    ::setrlimit(RLIMIT_FSIZE, &output);
    LeaveNoCore();
    ::setpriority(PRIO_PROCESS, 0, kNiceness);
    ::umask(077);
    if (::dup2(null.get(), STDIN_FILENO) >= 0 && ::dup2(log.get(), STDOUT_FILENO) >= 0 &&
        ::dup2(log.get(), STDERR_FILENO) >= 0) {
      ::execv(argv[0], argv.data());
    }
    ::_exit(127);
  }
  return child;
}

namespace {

/// 'T' of a process that a signal has stopped; '?' where there is none.
char StateOf(pid_t pid) {
  const auto stat = store::ReadWholeFile(fmt::format("/proc/{}/stat", pid), 4096);
  if (!stat.ok()) return '?';
  const std::size_t name_end = stat->rfind(") ");
  return name_end == std::string::npos || name_end + 2 >= stat->size() ? '?'
                                                                       : (*stat)[name_end + 2];
}

void AddDescendants(pid_t pid, std::vector<pid_t>* out) {
  constexpr std::size_t kMost = 4096;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    const auto children = store::ReadWholeFile(task.path() / "children", 1 << 16);
    if (!children.ok()) continue;
    const char* at = children->data();
    const char* const end = at + children->size();
    pid_t child = 0;
    while (out->size() < kMost) {
      while (at != end && *at == ' ') ++at;
      const auto [next, wrong] = std::from_chars(at, end, child);
      if (wrong != std::errc()) break;
      at = next;
      out->push_back(child);
      AddDescendants(child, out);
    }
  }
}

/// A py-spy that pauses processes and is killed in the midst of it leaves the stop behind that it
/// attached with (py-spy#390): the training would stand still for good.
void LetGoOn(const PySpyOptions& options) {
  if (!options.pause && !options.native) return;
  constexpr int kLooks = 25;
  constexpr timespec kBetween{0, 20'000'000};
  for (int look = 0; look < kLooks; ++look) {
    std::vector<pid_t> pids = {options.target};
    AddDescendants(options.target, &pids);
    for (const pid_t pid : pids) {
      if (StateOf(pid) == 'T') ::kill(pid, SIGCONT);
    }
    ::nanosleep(&kBetween, nullptr);
  }
}

}  // namespace

PySpyChild::PySpyChild(PySpyChild&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      started_ns_(other.started_ns_),
      options_(std::move(other.options_)) {}

PySpyChild::~PySpyChild() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);  // Our child and not reaped: the pid is its own.
  ::waitpid(pid_, nullptr, 0);
  LetGoOn(options_);
}

bool PySpyChild::Ended(PySpyEnd* end) {
  int status = 0;
  rusage usage{};
  if (pid_ <= 0) return true;
  if (::wait4(pid_, &status, WNOHANG, &usage) != pid_) return false;
  pid_ = -1;
  if (WIFSIGNALED(status)) LetGoOn(options_);
  const auto log = store::ReadRunFile(run_files::OfSubfolder(options_.log), kMostLogBytes);
  ReadWords(log.ok() ? std::string_view(*log) : std::string_view(), end);
  end->well = WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
              run_files::IsFile(run_files::OfSubfolder(options_.output));
  const auto ns = [](const timeval& t) {
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 +
           static_cast<std::int64_t>(t.tv_usec) * 1000;
  };
  end->cpu_ns = ns(usage.ru_utime) + ns(usage.ru_stime);
  if (end->words.empty() && !end->well) {
    end->words = WIFSIGNALED(status) ? fmt::format("it was killed by signal {}", WTERMSIG(status))
                                     : fmt::format("exit code {}", WEXITSTATUS(status));
  }
  return true;
}

void PySpyChild::Stop(bool hard) {
  if (pid_ > 0) ::kill(pid_, hard ? SIGKILL : SIGINT);
}

}  // namespace telltale::stacks
