// SPDX-License-Identifier: Apache-2.0
// Who called whom on the threads of the host: the parent of each slice is the innermost one of its
// thread that holds it. By nesting of times, without recursion: depth is as hostile as the trace.
#pragma once
#include <cstdint>
#include <vector>

#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

struct CallStack {
  std::vector<std::uint32_t> parent;  ///< By row, kNoRow at the outside.
  std::vector<std::uint32_t> depth;   ///< 0 at the outside.
};

/// Of the rows that `take` is true of; others have neither parent nor depth. A slice that begins
/// within another and ends behind it counts as held by it.
template <class Take>
CallStack CallStackOf(const Trace& trace, Take&& take) {
  CallStack out;
  out.parent.assign(trace.size(), kNoRow);
  out.depth.assign(trace.size(), 0);
  std::vector<std::vector<std::uint32_t>> open(trace.lanes.size());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!take(i)) continue;
    auto& stack = open[trace.lane[i]];
    while (!stack.empty()) {
      const std::uint32_t top = stack.back();
      const std::int64_t end = trace.end_ns(top);
      // One of no length lies within what ends where it is, and holds nothing itself.
      const bool over = trace.duration_ns[i] == 0
                            ? end < trace.begin_ns[i] || trace.duration_ns[top] == 0
                            : end <= trace.begin_ns[i];
      if (!over) break;
      stack.pop_back();
    }
    if (!stack.empty()) {
      out.parent[i] = stack.back();
      out.depth[i] = out.depth[stack.back()] + 1;
    }
    stack.push_back(static_cast<std::uint32_t>(i));
  }
  return out;
}

}  // namespace telltale::analysis::trace
