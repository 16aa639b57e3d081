// SPDX-License-Identifier: Apache-2.0
// Windows of detail: at which steps a profiler is started and stopped inside the training, what it
// records, and the bounds that it keeps. docs/formats/plan.md has the keys, docs/guide/windows.md
// what they are good for. Thread safety: a window is a value.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::plan {

/// [begin, end).
struct StepRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

/// Opens at each of its times (several may be given); closes at a step border, when its steps have
/// ended or a bound is reached, whatever comes first.
struct Window {
  std::string name;
  // When.
  std::vector<StepRange> steps;  ///< Ascending, apart from each other.
  std::uint32_t next = 0;        ///< So many steps from the next one on, once.
  std::uint32_t every = 0;       ///< At each step that this divides.
  double every_seconds = 0;      ///< At the first step so long after the last time, and at once.
  double random = 0;             ///< Share of steps, drawn by their numbers and `seed`.
  std::uint64_t seed = 0;
  double start_time = 0;     ///< Unix time, s: at the first step from then on...
  double duration = 0;       ///< ...and until so many seconds later; 0: by `length` alone.
  bool first_graph = false;  ///< At the step after one in which a graph was compiled anew.
  std::string when;          ///< An expression on the step; docs/guide/windows.md.
  std::uint32_t length = 1;  ///< Steps of each window but those of `steps`, `next` and a duration.
  std::string mode = "train";
  std::vector<std::int64_t> ranks;  ///< Empty: all.
  // What.
  std::vector<std::string> detail;  ///< Words of DetailWords().
  std::string timer = "total";      ///< Of `python`: total, cpu or off_cpu.
  // Bounds of one window, and of a process.
  double seconds = 60;
  std::uint64_t bytes = 64ULL << 20;  ///< Of the trace, about; a sixteenth of what memory may grow.
  std::uint32_t count = 100;          ///< Windows of this name that a process opens.
  /// When somebody asked for `next` (Unix time, ns): a process of a later attempt does not open it.
  std::int64_t asked_ns = 0;

  friend bool operator==(const Window&, const Window&) = default;
};

/// ops, kernels, shapes, stacks, memory, flops, modules, python.
std::span<const std::string_view> DetailWords();

/// Windows of a plan, and bytes of what the training is told of them.
inline constexpr std::size_t kMaxWindows = 64;

/// `[NAME:]key=value;...` of --window: keys as in a plan file, commas between the items of a list,
/// and what is recorded also without a key: "steps=100:105;ops,shapes".
Result<Window> ParseWindow(std::string_view text);

/// What the control page carries: an object of all windows by name; empty where there is none.
/// kLimit: more than the page has room for.
Result<std::string> WindowsText(const std::vector<Window>& windows);

/// "steps 100 to 104, every 1000 steps": when it opens, for people.
std::string WindowTimeWords(const Window& window);

}  // namespace telltale::plan
