// SPDX-License-Identifier: Apache-2.0
// Part of every C++ test: a test ends what it started. Programs that it starts, and what they start
// in turn, carry its mark in their environment, also as daemons in a session of their own; so do
// those of tests in Python (marked.py). After each test what still runs of it is awaited for a
// generous while; what then is left is ended, and fails the test.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

namespace telltale::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kVariable[] = "TEST_PROCESS_MARKS";
/// Agent, watcher and server end by themselves a little after the training.
constexpr std::chrono::seconds kPatience(120);
constexpr std::chrono::milliseconds kLook(20);

std::string Read(const fs::path& path) {
  const std::ifstream file(path, std::ios::binary);
  // To read of a process that has just ended is an error, which an iterator would throw.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Leftovers : public ::testing::EmptyTestEventListener {
 public:
  Leftovers() {
    const char* outer = std::getenv(kVariable);
    mark_ = std::to_string(::getpid()) + "-" +
            std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    ::setenv(kVariable, (outer == nullptr ? mark_ : outer + (" " + mark_)).c_str(), 1);
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    // Where it has failed, the rest is ended at once.
    bool end = test.result()->Failed();
    for (auto left = Left(); !left.empty(); left = Left()) {
      if (!end && std::chrono::steady_clock::now() > deadline) {
        for (const auto& [pid, words] : left)
          ADD_FAILURE() << "left behind, and ended now: " << words;
        end = true;
      }
      if (end) {
        for (const auto& [pid, words] : left) ::kill(pid, SIGKILL);
      }
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  /// Processes of ours that run, with their command lines; each may end while it is looked at.
  std::map<pid_t, std::string> Left() const {
    std::map<pid_t, std::string> found;
    std::error_code error;
    for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename();
      pid_t pid = 0;
      const auto [last, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
      if (bad != std::errc() || last != name.data() + name.size() || pid == ::getpid()) continue;
      if (!IsOurs(at->path())) continue;
      std::string words = Read(at->path() / "cmdline");
      for (char& c : words) c = c == '\0' ? ' ' : c;
      found[pid] = words;
    }
    return found;
  }

  bool IsOurs(const fs::path& process) const {
    // Of a fork that is still our program the environment is that which we were started with.
    const std::string stat = Read(process / "stat");
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    char state = 'Z';
    pid_t parent = 0;
    fields >> state >> parent;
    if (state == 'Z' || state == 'X') return false;
    return parent == ::getpid() || Read(process / "environ").find(mark_) != std::string::npos;
  }

  std::string mark_;
};

// Before the first test, whoever's main it is.
[[maybe_unused]] const bool kListens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Leftovers);
  return true;
}();

}  // namespace
}  // namespace telltale::testing
