// SPDX-License-Identifier: Apache-2.0
#include "run/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace telltale::run {
namespace {

constexpr int kMinRows = 4;
constexpr int kMinColumns = 20;

bool CapableTerminal() {
  const char* term = ::getenv("TERM");
  return term != nullptr && term[0] != '\0' && std::string_view(term) != "dumb";
}

}  // namespace

Terminal::Terminal(int fd, bool status_row) : fd_(fd), out_(fd) {
  const bool terminal = ::isatty(fd) == 1;
  wanted_ = status_row && terminal && CapableTerminal();
  const char* no_colour = ::getenv("NO_COLOR");
  colour_ = terminal && CapableTerminal() && (no_colour == nullptr || no_colour[0] == '\0');
}

Terminal::~Terminal() { GiveRow(); }

bool Terminal::Foreground() const {
  const pid_t group = ::tcgetpgrp(fd_);
  return group < 0 || group == ::getpgrp();
}

void Terminal::TakeRow() {
  if (!wanted_ || rows_ > 0 || !Foreground()) return;
  winsize size{};
  if (::ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_row < kMinRows || size.ws_col < kMinColumns) {
    return;
  }
  rows_ = size.ws_row;
  columns_ = size.ws_col;
  // A line feed makes room where the cursor stood on the bottom row; setting the region moves the
  // cursor home, so it is saved around it.
  Write(
      fmt::format("\n\x1b"
                  "7\x1b[1;{}r\x1b"
                  "8\x1b[1A",
                  rows_ - 1));
}

std::size_t Terminal::Undo(std::array<char, kUndoBytes>* text) const {
  if (rows_ == 0) return 0;
  const int length = std::snprintf(text->data(), text->size(),
                                   "\x1b"
                                   "7\x1b[r\x1b[%d;1H\x1b[2K\x1b"
                                   "8",
                                   rows_);
  return static_cast<std::size_t>(std::max(0, length));
}

std::string Terminal::Undo() const {
  std::array<char, kUndoBytes> text;
  return {text.data(), Undo(&text)};
}

void Terminal::GiveRow() {
  std::array<char, kUndoBytes> text;
  Write({text.data(), Undo(&text)});
  rows_ = 0;
  last_.clear();
}

void Terminal::Renew() {
  if (rows_ > 0) GiveRow();
  TakeRow();
}

void Terminal::DrawRow(std::string_view text) {
  if (rows_ == 0 || text == last_ || !Foreground()) return;
  pollfd out{fd_, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 0) return;  // Stopped: as in Print.
  last_ = text;
  Write(
      fmt::format("\x1b"
                  "7\x1b[{};1H\x1b[0m\x1b[2K{}\x1b[0m\x1b"
                  "8",
                  rows_, text));
}

void Terminal::Print(std::string_view line) {
  // The training may stand in the middle of a line of its own: ours begins on a fresh one there,
  // but only a terminal knows where the cursor is, and it does not tell without being asked.
  // What nobody reads (a full pipe, a stopped terminal) is lost, never waited for: the loop has
  // signals to pass on.
  pollfd out{fd_, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 0) return;
  Write(fmt::format("{}{}\n", rows_ > 0 ? "\r" : "", line));
}

}  // namespace telltale::run
