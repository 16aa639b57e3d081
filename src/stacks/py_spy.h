// SPDX-License-Identifier: Apache-2.0
// py-spy as a program: where it is, what this machine lets it do, and one piece of its recording.
// Thread safety: Find and CanRead are stateless; a PySpyChild has one user.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::stacks {

/// The program that TELLTALE_PY_SPY names; else `py-spy` beside the interpreter that `command`
/// (its first word) is, in VIRTUAL_ENV, in PATH. Empty: none.
std::filesystem::path FindPySpy(std::string_view command);

/// Whether this process may read the memory of another of its user's, as py-spy does: tried on a
/// child. Empty: it may; else why not.
std::string WhyNotReadable();

struct PySpyOptions {
  std::filesystem::path program;
  pid_t target = 0;  ///< With all its children.
  int rate = 20;     ///< Samples a second.
  int seconds = 15;
  bool pause = false;   ///< Stops the process while its stack is read.
  bool native = false;  ///< Frames of C and C++ too; stops the process in any case.
  std::filesystem::path output;
  std::filesystem::path log;  ///< What py-spy says, of this piece alone.
};

/// How a piece ended.
struct PySpyEnd {
  bool well = false;
  bool refused = false;      ///< It may not read the process: trying again changes nothing.
  bool no_python = false;    ///< There is none (yet, or any more).
  std::string words;         ///< What it said last.
  std::uint64_t errors = 0;  ///< Stacks that could not be read.
  std::int64_t cpu_ns = 0;
};

/// py-spy at work. It ends with us by SIGINT, upon which it writes what it has.
class PySpyChild {
 public:
  static Result<PySpyChild> Start(const PySpyOptions& options);
  PySpyChild(PySpyChild&& other) noexcept;
  PySpyChild& operator=(PySpyChild&&) = delete;
  /// Kills it where it runs.
  ~PySpyChild();

  /// CLOCK_MONOTONIC when it was started: its own times count from then, some milliseconds less.
  std::int64_t started_ns() const { return started_ns_; }
  /// False while it runs.
  bool Ended(PySpyEnd* end);
  /// To write what it has and end; or, `hard`, to end.
  void Stop(bool hard);

 private:
  PySpyChild() = default;
  pid_t pid_ = -1;
  std::int64_t started_ns_ = 0;
  PySpyOptions options_;
};

/// What py-spy's words mean: refused, no_python, errors, and the last of them.
void ReadWords(std::string_view log, PySpyEnd* end);

}  // namespace telltale::stacks
