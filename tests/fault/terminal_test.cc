// SPDX-License-Identifier: Apache-2.0
// telltale run on a terminal of its own (a pty): Ctrl-C, the status line, the terminal given back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "harness.h"

namespace telltale::fault {
namespace {

/// `telltale run` as the foreground job of a terminal whose output the test reads.
class Terminal {
 public:
  Terminal(std::vector<std::string> words, const char* term) {
    winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&master_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      // As a terminal's shell starts a job, however this test was started (nohup, a script's &).
      for (const int signal : {SIGINT, SIGQUIT, SIGHUP}) ::signal(signal, SIG_DFL);
      ::setenv("TERM", term, 1);
      ::unsetenv("NO_COLOR");
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    ::fcntl(master_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() { ::close(master_); }

  void Type(std::string_view keys) { ASSERT_GT(::write(master_, keys.data(), keys.size()), 0); }
  /// Everything shown so far.
  const std::string& Shown() {
    char bytes[4096];
    ssize_t n = 0;
    while ((n = ::read(master_, bytes, sizeof bytes)) > 0) {
      shown_.append(bytes, static_cast<std::size_t>(n));
    }
    return shown_;
  }
  int Wait() {
    int status = 0;
    if (!Await([&] {
          Shown();
          return ::waitpid(pid_, &status, WNOHANG) == pid_;
        })) {
      ::kill(pid_, SIGKILL);
      return -1000;
    }
    Shown();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  int master_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

class OnTerminal : public ::testing::Test {
 protected:
  std::vector<std::string> Words(std::vector<std::string> tail) {
    std::vector<std::string> words = {TelltalePath(), "run", "-o", scratch_ / "run"};
    words.insert(words.end(), tail.begin(), tail.end());
    return words;
  }
  Scratch scratch_{"terminal"};
};

TEST_F(OnTerminal, CtrlCReachesTheTrainingOnce) {
  Oracle* oracle = Oracle::Map((scratch_ / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Terminal terminal(Words({"--", TrainerPath(), scratch_ / "oracle", "1000000", "1000", "int"}),
                    "xterm");
  ASSERT_TRUE(Await([&] { return !terminal.Shown().empty() && oracle->committed > 10; }));
  terminal.Type("\x03");
  EXPECT_EQ(terminal.Wait(), 0) << terminal.Shown();
  EXPECT_EQ(oracle->signals, 1U);
  Recorded recorded;
  ReadRun(scratch_ / "run", &recorded);
  EXPECT_EQ(recorded.state, "finished");
  EXPECT_EQ(CheckOnce(recorded, oracle->committed), "");
}

TEST_F(OnTerminal, CtrlCThatEndsTheTrainingEndsUsAlike) {
  Terminal terminal(Words({"--", "sleep", "1000"}), "xterm");
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    ReadRun(scratch_ / "run", &recorded);
    return CountEvents(recorded, "run.attempt_start") == 1;
  }));
  terminal.Type("\x03");
  EXPECT_EQ(terminal.Wait(), -SIGINT) << terminal.Shown();
}

TEST_F(OnTerminal, StatusLineKeepsTheBottomRowAndGivesItBack) {
  Oracle* oracle = Oracle::Map((scratch_ / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Terminal terminal(Words({"--", TrainerPath(), scratch_ / "oracle", "1000000", "1000"}), "xterm");
  ASSERT_TRUE(Await([&] { return terminal.Shown().find("steps/s") != std::string::npos; }))
      << terminal.Shown();
  EXPECT_NE(terminal.Shown().find("\x1b[1;23r"), std::string::npos);
  EXPECT_NE(terminal.Shown().find("\x1b[24;1H"), std::string::npos);
  ::kill(oracle->pid, SIGKILL);
  EXPECT_EQ(terminal.Wait(), -SIGKILL);
  const std::string& shown = terminal.Shown();
  const auto region = shown.rfind("\x1b[1;23r");
  EXPECT_NE(shown.find("\x1b[r", region), std::string::npos) << "the whole screen scrolls again";
}

TEST_F(OnTerminal, AKilledSupervisorLeavesTheTerminalAsItWas) {
  Oracle* oracle = Oracle::Map((scratch_ / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  // Beneath a shell, whose terminal it remains: the end of a session's leader would hang it up.
  Terminal terminal({"/bin/sh", "-c", "\"$@\"; exec cat", "sh", TelltalePath(), "run", "-o",
                     scratch_ / "run", "--", TrainerPath(), scratch_ / "oracle", "1000000", "1000"},
                    "xterm");
  ASSERT_TRUE(Await([&] { return terminal.Shown().find("steps/s") != std::string::npos; }))
      << terminal.Shown();
  const auto info = store::ReadRunInfo(scratch_ / "run");
  ASSERT_TRUE(info.ok());
  ASSERT_EQ(terminal.Shown().find("\x1b[r"), std::string::npos);
  ASSERT_EQ(::kill(info->supervisor_pid, SIGKILL), 0);
  EXPECT_TRUE(Await([&] { return terminal.Shown().find("\x1b[r\x1b[24;1H") != std::string::npos; }))
      << "the whole screen scrolls again";
  ::kill(oracle->pid, SIGKILL);
  EXPECT_TRUE(Await([&] { return FindHelper("agent", scratch_ / "run") == 0; }));
}

TEST_F(OnTerminal, ADumbTerminalAndQuietGetNoControlSequences) {
  for (const char* option : {"", "--quiet"}) {
    const bool quiet = *option != '\0';
    auto words = Words({});
    words[3] += option;
    if (quiet) words.emplace_back(option);
    words.insert(words.end(), {"--", "echo", "hello"});
    Terminal terminal(words, quiet ? "xterm" : "dumb");
    EXPECT_EQ(terminal.Wait(), 0);
    EXPECT_EQ(terminal.Shown().find('\x1b'), std::string::npos) << terminal.Shown();
    EXPECT_NE(terminal.Shown().find("hello"), std::string::npos);
    if (quiet) {
      EXPECT_EQ(terminal.Shown(), "hello\r\n");
    }
  }
}

}  // namespace
}  // namespace telltale::fault
