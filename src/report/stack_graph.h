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
  std::string title;   ///< "Sampled stacks".
  std::string what;    ///< What its frames are.
  std::string why;     ///< Why it is not drawn; else empty.
  std::string partly;  ///< What of the recordings is not in it, in sentences; else empty.
  /// The first is the whole; at most kMostFrames.
  std::vector<Frame> frames;
  std::uint64_t left_out = 0;                          ///< Frames.
  std::vector<std::pair<std::string, double>> by_own;  ///< Most ns of their own, first.

  static constexpr std::size_t kMostFrames = 500;
  static constexpr std::size_t kMostDepth = 64;
  static constexpr double kLeastShare = 0.001;
  /// Of a name as the page has it.
  static constexpr std::size_t kMostNameBytes = 200;
};

/// What all graphs of a page together are read from. More takes too long beside a training: a
/// million slices take about a second, whatever they compress to.
struct StackBound {
  std::uintmax_t file_bytes = 128 << 20;
  std::uint64_t slices = 8'000'000;
};

/// A frame's name in at most StackGraph::kMostNameBytes as Escape() gives it, cut between
/// characters: of "file(line): function" the begin of the file, of others the end.
std::string ShortFrameName(std::string_view name);

/// Of the times on the host. The graph has no frames where the tree has no time.
StackGraph MakeStackGraph(const analysis::profile::Tree& tree);

/// Sampled stacks, and what profilers recorded; none of what the run does not have. Of the run's
/// folders it opens those of stacks alone, the first that are within the bound together, and says
/// how many it leaves out.
std::vector<StackGraph> StackGraphsOf(const std::filesystem::path& run,
                                      const StackBound& most = {});

/// `id`: a word that no other graph of the page has.
std::string Draw(const StackGraph& graph, std::string_view id);

}  // namespace telltale::report
