// SPDX-License-Identifier: Apache-2.0
// How long the report is waited for, and who reads what is said of it. Each case is said by a
// process of its own, since the time and signals end that as the training ended.
#include "cli/last_words.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace telltale::cli {
namespace {

constexpr int kCode = 7;  ///< Of the training.
constexpr std::int64_t kPatienceNs = 300 * kSecond;
constexpr useconds_t kTurnUs = 20'000;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

/// It reads on and on, for so long, and has then something to say.
int ReadOn(int link, std::int64_t for_ns) {
  const std::int64_t end = Now() + for_ns;
  for (std::uint64_t records = 1; Now() < end; ++records) {
    if (::send(link, &records, sizeof records, MSG_NOSIGNAL) < 0) return 1;
    ::usleep(kTurnUs);
  }
  return ::write(STDERR_FILENO, "the verdict\n", 12) == 12 ? 0 : 1;
}

/// It waits for a disk.
int Hang(int link) {
  char byte = 0;
  while (::recv(link, &byte, 1, 0) > 0) {
  }
  return 0;
}

class LastWordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    said_.reset(pipe[0]);
    stream_.reset(pipe[1]);
    ::fcntl(said_.get(), F_SETFL, O_NONBLOCK);
    outcome_.exit.exit_code = kCode;
    outcome_.ended_ns = Now();
  }
  void TearDown() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  /// Nobody reads the stream, and it takes nothing any more.
  void Fill() {
    ::fcntl(stream_.get(), F_SETFL, O_NONBLOCK);
    const std::string page(4096, '.');
    while (::write(stream_.get(), page.data(), page.size()) > 0) {
    }
    ::fcntl(stream_.get(), F_SETFL, 0);
  }
  void Say(bool is_file = false) {
    begun_ns_ = Now();
    // Blocked before it starts: a signal may come at once.
    sigset_t ends;
    sigset_t before;
    ::sigemptyset(&ends);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::sigaddset(&ends, signal);
    ::sigprocmask(SIG_BLOCK, &ends, &before);
    pid_ = ::fork();
    if (pid_ == 0) {
      outcome_.stream = run::StreamWriter(stream_.get(), is_file);
      SayLastWords({.run = "a-run"}, outcome_, task_);
      run::ExitAs(outcome_.exit);
    }
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ASSERT_GE(pid_, 0);
    stream_.reset();
  }
  bool Ended() {
    int status = 0;
    if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    return pid_ <= 0;
  }
  /// Whether it ended as the training did, `seconds` after it was called at the latest. `read`: its
  /// lines are read meanwhile.
  bool EndsWithin(int seconds, bool read = true) {
    while (!Ended() && Now() - begun_ns_ < kPatienceNs) {
      if (read) Read();
      ::usleep(1000);
    }
    const std::int64_t took_ns = Now() - begun_ns_;
    Read();
    EXPECT_EQ(exit_code_, kCode);
    EXPECT_LE(took_ns, seconds * kSecond) << text_;
    return exit_code_ == kCode && took_ns <= seconds * kSecond;
  }
  void Read() {
    char bytes[4096];
    for (ssize_t n = 0; (n = ::read(said_.get(), bytes, sizeof bytes)) > 0;) {
      text_.append(bytes, static_cast<std::size_t>(n));
    }
  }
  bool Says(const std::string& text) const { return text_.find(text) != std::string::npos; }

  run::Outcome outcome_;
  ReportTask task_;
  UniqueFd said_;
  UniqueFd stream_;
  std::string text_;
  std::int64_t begun_ns_ = 0;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

TEST_F(LastWordsTest, AReportThatMakesProgressMayTakeLongerThanOneThatMakesNone) {
  outcome_.ended_ns -= 2 * run::kEndBudgetNs;  // What a store that does not answer gets is over.
  task_.silence_ns = 3 * kSecond;
  task_.quiet_ns = kSecond;
  task_.work = [](int link) { return ReadOn(link, 5 * kSecond); };
  Say();
  EndsWithin(60);
  EXPECT_TRUE(Says("telltale: writing the report: ")) << text_;
  EXPECT_TRUE(Says("the verdict\n")) << text_;
  EXPECT_FALSE(Says("not waited for")) << text_;
}

TEST_F(LastWordsTest, AReportThatMakesNoProgressIsNotWaitedFor) {
  outcome_.ended_ns -= 2 * run::kEndBudgetNs;
  task_.silence_ns = 200 * kMs;
  task_.work = Hang;
  Say();
  EndsWithin(40);  // The limit is 60 s away.
  EXPECT_TRUE(Says("telltale: not waited for: the report: `telltale check a-run` shows ")) << text_;
}

TEST_F(LastWordsTest, AReportThatMakesProgressEndsAtTheLimitAllTheSame) {
  outcome_.ended_ns -= 2 * run::kEndBudgetNs;
  task_.limit_ns = 2 * run::kEndBudgetNs + kSecond;
  task_.work = [](int link) { return ReadOn(link, kPatienceNs); };
  Say();
  EndsWithin(60);
  EXPECT_TRUE(Says("telltale: not waited for: the report: ")) << text_;
}

TEST_F(LastWordsTest, WhereTheStoreDoesNotAnswerProgressGivesNoMoreTime) {
  outcome_.ended_ns -= run::kEndBudgetNs - 2 * kSecond;
  outcome_.store_answers = false;
  task_.work = [](int link) { return ReadOn(link, kPatienceNs); };
  Say();
  EndsWithin(20);
  EXPECT_TRUE(Says("telltale: not waited for: the report: the disk of a-run does not answer"))
      << text_;
}

TEST_F(LastWordsTest, WhereSomethingWasLeftBehindTheReportGetsNoMoreTime) {
  outcome_.ended_ns -= run::kEndBudgetNs - 2 * kSecond;
  outcome_.left = {"the agent's last records"};
  task_.work = [](int link) { return ReadOn(link, kPatienceNs); };
  Say();
  EndsWithin(20);
  EXPECT_TRUE(Says("telltale: not waited for: the agent's last records, the report: `telltale "))
      << text_;
}

TEST_F(LastWordsTest, AReaderThatTakesNothingGetsNoMoreTimeThanTheRest) {
  Fill();
  outcome_.ended_ns -= run::kEndBudgetNs - 2 * kSecond;
  outcome_.store_answers = false;
  task_.quiet_ns = 0;
  task_.work = Hang;
  Say();
  EndsWithin(20, false);
}

TEST_F(LastWordsTest, ASignalEndsItThoughTheReaderTakesNothing) {
  Fill();
  task_.quiet_ns = 0;
  task_.work = Hang;
  Say();
  ::usleep(500'000);  // The case itself: it has something to say by then.
  ::kill(pid_, SIGTERM);
  EndsWithin(20, false);  // Without it: 30 s and more.
}

TEST_F(LastWordsTest, AFileHasTheVerdictBeforeWeEndAndInOrder) {
  Fill();
  task_.quiet_ns = 0;
  task_.work = [](int link) { return ReadOn(link, 500 * kMs); };
  Say(true);
  ::usleep(2'000'000);  // The case itself: so long the disk takes nothing.
  EXPECT_FALSE(Ended()) << "it must wait for the file";
  EndsWithin(60);
  const auto progress = text_.find("telltale: writing the report");
  const auto verdict = text_.find("the verdict\n");
  EXPECT_NE(progress, std::string::npos) << text_;
  EXPECT_NE(verdict, std::string::npos) << text_;
  EXPECT_LT(progress, verdict);
}

TEST_F(LastWordsTest, TheTerminalIsGivenBackFirst) {
  outcome_.undo = "<row>";
  task_.work = [](int link) { return ReadOn(link, 0); };
  Say();
  EndsWithin(60);
  EXPECT_EQ(text_, "<row>the verdict\n");
}

}  // namespace
}  // namespace telltale::cli
