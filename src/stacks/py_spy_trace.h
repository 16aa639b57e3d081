// SPDX-License-Identifier: Apache-2.0
// Reads what `py-spy record --format chrometrace --subprocesses --threads` writes: who stood where,
// and since when. Stateless; thread-safe.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::stacks {

/// From `at_ns` on the thread stood here, until its next one.
struct Observation {
  std::int64_t at_ns = 0;             ///< Since py-spy's start.
  std::vector<std::uint32_t> frames;  ///< Of PySpyTrace::names, outermost first.
};

struct ThreadTimeline {
  std::int64_t pid = 0;
  std::int64_t tid = 0;  ///< The kernel's, else the interpreter's.
  std::string name;      ///< Python's, may be empty.
  std::vector<std::int64_t>
      ancestors;                  ///< Processes above `pid` that were sampled, outermost first.
  std::vector<Observation> seen;  ///< By time, never empty.

  bool main() const { return tid == pid; }
};

struct PySpyTrace {
  std::vector<std::string> names;  ///< "file(line): function", UTF-8.
  std::vector<ThreadTimeline> threads;
  /// Moments at which all threads were looked at, as far as something had changed; sorted.
  std::vector<std::int64_t> rounds;
  std::int64_t end_ns = 0;    ///< The last event's.
  std::uint64_t damaged = 0;  ///< Events that make no sense, or one where the file is cut.
};

/// `folder`: what is left out of the files' paths where they lie below it; may be empty.
/// Code::kUnusable: nothing of it can be read.
Result<PySpyTrace> ParsePySpyTrace(std::string_view json, std::string_view folder);

/// A frame as slices name it: "torch/nn/functional.py(123): linear", what lies in packages and in
/// Python's own library named from there.
std::string FrameText(std::string_view file, std::int64_t line, std::string_view function,
                      std::string_view folder);

}  // namespace telltale::stacks
