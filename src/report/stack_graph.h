// SPDX-License-Identifier: Apache-2.0
// Stacks of a run as flame graphs of the report, outermost frames at the top: nested boxes of HTML,
// which a link of each widens by style alone. Bounded: the widest frames, the rest is said to be
// left out.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/profile/tree.h"

namespace telltale::report {

struct StackGraph {
  struct Frame {
    std::string name;
    double ns = 0;                     ///< With all below it.
    std::vector<std::uint32_t> below;  ///< The widest first.
  };
  std::string title;  ///< "Sampled stacks".
  std::string what;   ///< What its frames are.
  std::string why;    ///< Why it is not drawn; else empty.
  /// The first is the whole; at most kMostFrames.
  std::vector<Frame> frames;
  std::uint64_t left_out = 0;                          ///< Frames.
  std::vector<std::pair<std::string, double>> by_own;  ///< Most ns of their own, first.

  static constexpr std::size_t kMostFrames = 500;
  static constexpr std::size_t kMostDepth = 64;
  static constexpr double kLeastShare = 0.001;
};

/// Of the times on the host. The graph has no frames where the tree has no time.
StackGraph MakeStackGraph(const analysis::profile::Tree& tree);

/// Sampled stacks, and what profilers recorded; none of what the run does not have. Reads the run's
/// slices; where they are many it only says how to get at them.
std::vector<StackGraph> StackGraphsOf(const std::filesystem::path& run);

/// `id`: a word that no other graph of the page has.
std::string Draw(const StackGraph& graph, std::string_view id);

}  // namespace telltale::report
