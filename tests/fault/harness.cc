// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/process.h"
#include "base/unique_fd.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;

fs::path BuildDir() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path();  // build/x/tests/test
}

/// What a number of a series must be: each of 0..committed-1 once, and at most the one after them.
std::string CheckSeries(std::string_view what, std::vector<std::int64_t> numbers,
                        std::uint64_t committed) {
  std::sort(numbers.begin(), numbers.end());
  std::string wrong;
  if (const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
      twice != numbers.end()) {
    wrong += fmt::format("{} {} is there twice; ", what, *twice);
  }
  std::size_t missing = 0;
  for (std::uint64_t i = 0; i < committed; ++i) {
    if (!std::binary_search(numbers.begin(), numbers.end(), static_cast<std::int64_t>(i))) {
      if (missing++ == 0)
        wrong += fmt::format("{} {} of {} committed is missing", what, i, committed);
    }
  }
  if (missing > 0) wrong += fmt::format(" ({} in all); ", missing);
  return wrong;
}

}  // namespace

bool Await(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Scratch::Scratch(std::string_view name)
    : path_(fs::temp_directory_path() / fmt::format("tt-fault-{}-{}", ::getpid(), name)) {
  fs::remove_all(path_);
  fs::create_directories(path_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (::getenv("TELLTALE_KEEP_RUNS") == nullptr) fs::remove_all(path_, ignored);
}

bool EndOfAnOrphanIsTold() {
  int said[2];  // The orphan's pid...
  int go[2];    // ...which ends at the end of this.
  if (::pipe2(said, O_CLOEXEC) != 0) return false;
  const UniqueFd read_said(said[0]);
  UniqueFd write_said(said[1]);
  if (::pipe2(go, O_CLOEXEC) != 0) return false;
  const UniqueFd read_go(go[0]);
  UniqueFd write_go(go[1]);
  const pid_t parent = ::fork();
  if (parent < 0) return false;
  if (parent == 0) {
    const pid_t orphan = ::fork();
    if (orphan != 0) {
      const bool told = ::write(said[1], &orphan, sizeof orphan) == sizeof orphan;
      ::_exit(told ? 0 : 1);
    }
    ::close(go[1]);
    char nothing = 0;
    [[maybe_unused]] const ssize_t n = ::read(go[0], &nothing, 1);
    ::_exit(7);
  }
  ::waitpid(parent, nullptr, 0);
  pid_t orphan = -1;
  if (::read(said[0], &orphan, sizeof orphan) != sizeof orphan || orphan <= 0) return false;
  const UniqueFd pidfd = OpenPidfd(orphan);
  write_go.reset();
  if (!pidfd) return false;
  std::optional<ProcessExit> exit;
  // Where it has been reaped and nothing was told, nothing will be.
  Await([&] { return (exit = PidfdExit(pidfd.get())).has_value() || ::kill(orphan, 0) != 0; },
        std::chrono::seconds(30));
  if (!exit) exit = PidfdExit(pidfd.get());
  return exit && exit->exit_code == 7;
}

ScopedVariable::ScopedVariable(const char* name, const std::string& value) : name_(name) {
  const char* there = ::getenv(name);
  if (there != nullptr) before_ = there;
  ::setenv(name, (there != nullptr ? fmt::format("{}:{}", there, value) : value).c_str(), 1);
}

ScopedVariable::~ScopedVariable() {
  before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_);
}

std::string TextOf(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string VariableOf(pid_t pid, const std::string& name) {
  std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

std::string TrainerPath() { return BuildDir() / "tests/fault_trainer"; }
std::string CrowdPath() { return BuildDir() / "tests/fault_crowd"; }
std::string TelltalePath() { return BuildDir() / "bin/telltale"; }

Started::~Started() {
  if (pid > 0) ::kill(-pid, SIGKILL);
}

int Started::Wait() {
  int status = 0;
  pid_t got = 0;
  if (!Await([&] { return (got = ::waitpid(pid, &status, WNOHANG)) != 0; }) || got != pid) {
    ::kill(-pid, SIGKILL);
    return -1000;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string Started::Err() const { return TextOf(err_path); }

Started StartRun(const fs::path& run, const std::vector<std::string>& options,
                 const std::vector<std::string>& command, const fs::path& err, void (*prepare)()) {
  std::vector<std::string> words = {TelltalePath(), "run", "-o", run};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Started started;
  started.err_path = err;
  const int fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  started.pid = ::fork();
  if (started.pid == 0) {
    ::setpgid(0, 0);
    ::dup2(fd, STDERR_FILENO);
    if (prepare != nullptr) prepare();
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }
  ::close(fd);
  return started;
}

pid_t FindHelper(std::string_view kind, const fs::path& run) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc() || end != name.data() + name.size()) continue;
    const std::string line = ProcessCommandLine(pid);
    if (line.find(fmt::format("telltale {} ", kind)) != std::string::npos &&
        line.find(run.string()) != std::string::npos) {
      return pid;
    }
  }
  return 0;
}

void ReadRun(const fs::path& run, Recorded* out) {
  auto reader = store::RunReader::Open(run);
  if (!reader.ok()) {
    out->state = reader.status().message();
    return;
  }
  const store::RunState state = (*reader)->state();
  out->state = state.state;
  out->exit_code = state.exit_code;
  out->signal = state.signal;
  const Status status = (*reader)->ReadAll(~0U, &out->pool, &out->rows, &out->salvage);
  if (!status.ok()) out->state += ": " + status.message();
}

std::string CheckStepsOnce(const Recorded& recorded, std::uint64_t committed,
                           std::uint32_t attempt) {
  std::vector<std::int64_t> steps;
  for (const auto& row : recorded.rows.steps) {
    if (row.attempt == attempt && row.mode == "TRAIN") steps.push_back(row.step);
  }
  std::string wrong = CheckSeries("step", std::move(steps), committed);
  if (recorded.salvage.missing_rows > 0) {
    wrong += fmt::format("{} rows are missing by their numbers; ", recorded.salvage.missing_rows);
  }
  return wrong;
}

std::string CheckOnce(const Recorded& recorded, std::uint64_t committed, std::uint32_t attempt) {
  std::vector<std::int64_t> marks;
  for (const auto& row : recorded.rows.scalars) {
    if (row.attempt == attempt && row.name == "mark") {
      marks.push_back(static_cast<std::int64_t>(row.value));
    }
  }
  return CheckStepsOnce(recorded, committed, attempt) +
         CheckSeries("mark", std::move(marks), committed);
}

std::size_t CountEvents(const Recorded& recorded, std::string_view kind) {
  return static_cast<std::size_t>(std::count_if(recorded.rows.events.begin(),
                                                recorded.rows.events.end(),
                                                [&](const auto& row) { return row.kind == kind; }));
}

}  // namespace telltale::fault
