// SPDX-License-Identifier: Apache-2.0
// The tree of a view, of the slices of a run.
//
// Host time of a node is its slices' less that of the nodes within them. Device time is that of
// what it launched, found by correlation, else by the operator's external id; what was launched
// within a step counts to that step whenever it ran. Bytes are those of allocations within it.
// Averages are over the steps that the run has; then what lies outside of steps is not counted.
// Memory: that of the tree and of SliceOrder, and 24 bytes a launch and some 60 a forward operator.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/profile/tree.h"
#include "analysis/profile/view.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::analysis::profile {

/// Of a run with sampled stacks (query::kSampledStacks) and a profiler's slices, which ones.
enum class SliceSource : std::uint8_t {
  kAll,      ///< Either; in averages over the steps of windows of detail only these.
  kSampled,  ///< The sampled ones.
  kTrace,    ///< All but these.
  kBoth,     ///< Either, below a node each (kSampledNode, kTraceNode) where there are both.
};
inline constexpr std::string_view kSampledNode = "sampled stacks";
inline constexpr std::string_view kTraceNode = "windows of detail";

struct BuildOptions {
  std::int64_t step = -1;  ///< -1: the average of all.
  std::optional<std::int32_t> rank;
  bool sum = false;            ///< Sums, not averages, whatever lies outside of steps too.
  bool input_shapes = false;   ///< To be kept by node.
  bool parameters = false;     ///< The weights of the run, where the view has them.
  bool tensor_values = false;  ///< And what is in them.
  SliceSource source = SliceSource::kAll;
  std::size_t memory_bytes = 96 << 20;  ///< SliceOrder's.
  /// SliceOrder's: of the run's folders only these.
  std::optional<std::vector<std::string>> writers;
};

struct Profile {
  Tree tree;
  std::uint64_t steps = 0;     ///< Averaged over; 0 where the run has none.
  std::uint64_t slices = 0;    ///< Read.
  std::uint64_t outside = 0;   ///< Not counted: in no step, or not in the one asked for.
  std::uint64_t unplaced = 0;  ///< Kernels whose launch was not found.
  bool sampled = false;        ///< Of sampled stacks: thread, phase, frames.
  bool traced = false;         ///< Of a profiler's slices.
  store::Salvage salvage;
};

/// Code::kUsage: no such step.
Result<Profile> BuildProfile(const std::filesystem::path& run, const View& view,
                             const BuildOptions& options = {});

}  // namespace telltale::analysis::profile
