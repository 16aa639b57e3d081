// SPDX-License-Identifier: Apache-2.0
// Stacks with values as one page of HTML that needs nothing else: a flame graph, outermost frames
// at the top, to be zoomed and searched by mouse and keyboard, and the functions with most of their
// own. docs/guide/export.md.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/saturate.h"
#include "base/status.h"
#include "interchange/export_file.h"

namespace telltale::interchange {

struct FlameGraphText {
  std::string title;
  std::string subtitle;
  std::string unit;  ///< nanoseconds, bytes or count.
};

/// Memory: a node a distinct stack.
class FlameGraph {
 public:
  FlameGraph() : nodes_(1) {}

  /// `frames` from the outermost to the innermost; `value` their own, nothing where not above 0.
  void Add(std::span<const std::string_view> frames, std::int64_t value);
  std::uint64_t stacks() const { return stacks_; }
  std::int64_t total() const { return total_.value(); }
  /// Frames of less than `least` of the whole are left out, and said to be.
  Status Write(const FlameGraphText& text, ExportFile* file, double least = 1e-4) const;

 private:
  struct Node {
    std::uint32_t name = 0;
    Sum own = 0;
    std::map<std::uint32_t, std::uint32_t> children;  ///< By name.
  };
  std::uint32_t NameId(std::string_view name);

  std::vector<Node> nodes_;  ///< The first is the root.
  std::vector<std::string> names_;
  std::map<std::string, std::uint32_t, std::less<>> name_ids_;
  std::uint64_t stacks_ = 0;
  Sum total_ = 0;
};

}  // namespace telltale::interchange
