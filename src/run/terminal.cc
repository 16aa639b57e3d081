// SPDX-License-Identifier: Apache-2.0
#include "run/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

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
  // A line feed makes room where the cursor stood on the bottom row; setting the region moves the
  // cursor home, so it is saved around it.
  renew_ =
      !out_.Write(fmt::format("\n\x1b"
                              "7\x1b[1;{}r\x1b"
                              "8\x1b[1A",
                              size.ws_row - 1));
  if (renew_) return;
  rows_ = size.ws_row;
  columns_ = size.ws_col;
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
  renew_ = false;
  giving_ = !out_.Write({text.data(), Undo(&text)});
  if (giving_) return;
  rows_ = 0;
  last_.clear();
}

void Terminal::Renew() {
  GiveRow();
  renew_ = giving_;
  if (!giving_) TakeRow();
}

void Terminal::Retry() {
  if (renew_) {
    Renew();
  } else if (giving_) {
    GiveRow();
  }
}

StreamWriter Terminal::Leave(std::string* undo) {
  *undo = Undo();
  giving_ = renew_ = wanted_ = false;
  rows_ = 0;
  return std::move(out_);
}

void Terminal::DrawRow(std::string_view text) {
  if (!has_row() || text == last_ || !Foreground()) return;
  const bool drawn =
      out_.Write(fmt::format("\x1b"
                             "7\x1b[{};1H\x1b[0m\x1b[2K{}\x1b[0m\x1b"
                             "8",
                             rows_, text));
  if (drawn) last_ = text;
}

void Terminal::Print(std::string_view line) {
  // The training may stand in the middle of a line of its own: ours begins on a fresh one there,
  // but only a terminal knows where the cursor is, and it does not tell without being asked.
  // What nobody reads (a full pipe, a stopped terminal) is counted, never waited for: the loop has
  // signals to pass on.
  out_.Print(rows_ > 0 ? fmt::format("\r{}", line) : std::string(line));
}

}  // namespace telltale::run
