// SPDX-License-Identifier: Apache-2.0
// Where Telltale's own lines go: stderr, never stdout. On a terminal the bottom row is kept for the
// status line by a scroll region, since the training writes to the terminal by itself and must not
// be disturbed; the region is given back at the end, on a stop (Ctrl-Z) and on every way out; by
// the agent where we are killed. Without a region the line would scroll away with the training's
// output, or lie over it.
// Thread safety: none; the supervisor's thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "run/errand.h"

namespace telltale::run {

class Terminal {
 public:
  /// `fd` is stderr; `status_row` false: plain lines only.
  Terminal(int fd, bool status_row);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// True when the status row is in use.
  bool has_row() const { return rows_ > 0 && !giving_; }
  /// True where the row is or may come to be in use.
  bool uses_row() const { return wanted_; }
  bool colour() const { return colour_; }
  int columns() const { return columns_; }

  /// Takes the bottom row, where this is a terminal that can; else does nothing.
  void TakeRow();
  /// Gives it back, cleared. Needs no memory. A terminal that is stopped (Ctrl-S) takes that as
  /// little as anything else, and is not waited for: then Retry gives it back.
  void GiveRow();
  /// Does what the terminal did not take, where it does now.
  void Retry();
  /// As GiveRow, for good: TakeRow and Renew do nothing from here on.
  void ForgoRow() {
    GiveRow();
    wanted_ = false;
  }
  /// What GiveRow would write now; empty while the row is not taken.
  std::string Undo() const;
  /// The window has changed its size, or somebody else had the terminal.
  void Renew();
  /// Writes the status row; `text` must fit and hold colour sequences at most.
  void DrawRow(std::string_view text);
  /// Prints one line of ours, above the status row.
  void Print(std::string_view line);
  /// To another, who says the last words: the stream, and what gives the row back where that is
  /// still to be done. Nothing is written any more.
  StreamWriter Leave(std::string* undo);

 private:
  static constexpr std::size_t kUndoBytes = 64;
  std::size_t Undo(std::array<char, kUndoBytes>* text) const;
  bool Foreground() const;

  int fd_;
  StreamWriter out_;
  bool wanted_;
  bool colour_ = false;
  int rows_ = 0;         ///< Of the terminal while the row is taken, else 0.
  bool giving_ = false;  ///< It is to be given back...
  bool renew_ = false;   ///< ...or taken anew, as soon as the terminal takes that.
  int columns_ = 80;
  std::string last_;
};

}  // namespace telltale::run
