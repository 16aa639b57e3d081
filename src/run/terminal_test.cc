// SPDX-License-Identifier: Apache-2.0
#include "run/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/unique_fd.h"

namespace telltale::run {
namespace {

/// Seconds: a write that blocks ends the test, and a text that does not come.
constexpr unsigned kHangs = 300;
constexpr char kTaken[] = "\x1b[1A";  ///< The end of what takes the row...
constexpr char kGiven[] =
    "\x1b[2K\x1b"
    "8";  ///< ...and of what gives it back.

class TerminalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TERM", "xterm", 1);
    int master = -1;
    int slave = -1;
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
    shown_.reset(master);
    at_.reset(slave);
    ::fcntl(master, F_SETFL, O_NONBLOCK);
    ::alarm(kHangs);
  }
  void TearDown() override { ::alarm(0); }
  /// Ctrl-S, and Ctrl-Q.
  void Stop() { ASSERT_EQ(::tcflow(at_.get(), TCOOFF), 0); }
  void GoOn() { ASSERT_EQ(::tcflow(at_.get(), TCOON), 0); }
  /// What was written since the last call, up to `end`, which comes.
  std::string ShownTo(const std::string& end) {
    std::string text;
    while (text.find(end) == std::string::npos) {
      text += Shown();
      ::usleep(1000);
    }
    return text;
  }
  std::string Shown() {
    char bytes[4096];
    std::string text;
    for (ssize_t n = 0; (n = ::read(shown_.get(), bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(n));
    }
    return text;
  }

  UniqueFd shown_;
  UniqueFd at_;
};

TEST_F(TerminalTest, AStoppedOneIsNotWaitedForAndGetsItsRowBackWhenItGoesOn) {
  Terminal terminal(at_.get(), true);
  terminal.TakeRow();
  ASSERT_TRUE(terminal.has_row());
  EXPECT_NE(ShownTo(kTaken).find("\x1b[1;23r"), std::string::npos);
  Stop();
  terminal.GiveRow();
  EXPECT_FALSE(terminal.has_row()) << "nothing is drawn there any more";
  terminal.DrawRow("status");
  terminal.Print("a line");
  terminal.Retry();
  EXPECT_EQ(Shown(), "");
  GoOn();
  terminal.Retry();
  const std::string shown = ShownTo(kGiven);
  EXPECT_NE(shown.find("\x1b[r"), std::string::npos) << "the whole screen scrolls again";
  EXPECT_EQ(shown.find("status"), std::string::npos);
  terminal.Retry();
  EXPECT_EQ(Shown(), "") << "once";
  EXPECT_EQ(terminal.Undo(), "");
}

TEST_F(TerminalTest, OneThatIsStoppedWhenItsRowIsTakenGivesItLater) {
  Terminal terminal(at_.get(), true);
  Stop();
  terminal.TakeRow();
  EXPECT_FALSE(terminal.has_row());
  GoOn();
  terminal.Retry();
  EXPECT_TRUE(terminal.has_row());
  EXPECT_NE(ShownTo(kTaken).find("\x1b[1;23r"), std::string::npos);
}

TEST_F(TerminalTest, WhoSaysTheLastWordsGivesBackWhatItDidNotTake) {
  Terminal terminal(at_.get(), true);
  terminal.TakeRow();
  const std::string undo = terminal.Undo();
  ASSERT_NE(undo, "");
  ShownTo(kTaken);
  Stop();
  terminal.GiveRow();
  std::string left;
  StreamWriter stream = terminal.Leave(&left);
  EXPECT_EQ(left, undo);
  EXPECT_EQ(stream.fd(), at_.get());
  GoOn();
  EXPECT_TRUE(stream.Write(left));
  EXPECT_NE(ShownTo(kGiven).find("\x1b[r"), std::string::npos);
}

}  // namespace
}  // namespace telltale::run
