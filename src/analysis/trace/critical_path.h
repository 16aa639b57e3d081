// SPDX-License-Identifier: Apache-2.0
// The longest chain of work and waits within a window of one rank's trace, by
// HolisticTraceAnalysis' rules ("lightweight critical path"): what is not on it costs nothing. And
// what a step would take were something of it shorter.
//
// A node is the begin or the end of an operator, a call of the device's API, a kernel or copy.
// Edges: along the host's threads (operators nest; between outermost ones no time counts; calls
// that block count nothing by themselves), along the work of a device, from a launch to what it
// launched where nothing else was outstanding on the stream, from work to the next on the stream
// where something was, and those of synchronisation, without weight: to calls that wait for a
// stream, a context or an event, and between streams that wait for each other's events.
//
// Linear in the slices of the window but for sorting. Without recursion.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"
#include "base/status.h"

namespace telltale::analysis::trace {

/// What bounds a piece of the path.
enum class PathBound : std::uint8_t {
  kHost,
  kData,           ///< The host, loading data.
  kCompute,        ///< Kernels.
  kCommunication,  ///< Kernels of collectives.
  kCopies,         ///< Copies and sets.
  kLaunch,         ///< From a launch to the begin of its work.
  kGaps,           ///< Between two pieces of work of a stream.
  kNothing,        ///< Dependencies, which have no length.
};
inline constexpr std::array<std::string_view, 8> kPathBoundNames = {
    "host", "data", "compute", "communication", "copies", "launch", "gaps", "dependency"};

struct PathEdge {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::int64_t weight_ns = 0;
  std::uint32_t row = kNoRow;  ///< The slice that it belongs to; kNoRow of dependencies.
  PathBound bound = PathBound::kNothing;
  bool assumed = false;  ///< Only for what-if: nothing begins before it is launched.
};

/// A change of what things cost: of one kind of edge, or of slices by name.
struct WhatIf {
  std::string text;  ///< "data=0".
  int bound = -1;    ///< A PathBound, or...
  std::string name;  ///< ...slices with this in their name, and what nests in them.
  double factor = 0;
};
/// "data=0", "communication=0.5", "aten::mm=0.8".
Result<WhatIf> ParseWhatIf(std::string_view text);

class CriticalPath {
 public:
  struct Window {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  /// Of the slices in scope whose host side begins within the window. REQUIRES: loaded with events.
  /// Code::kUnusable where there is nothing, or where sync marks contradict the order of time.
  static Result<CriticalPath> Of(const Trace& trace, const Scope& scope, const Window& window);

  /// The edges of the path in order, and their weights in sum.
  const std::vector<PathEdge>& edges() const { return path_; }
  std::int64_t length_ns() const { return length_ns_; }
  std::array<Sum, kPathBoundNames.size()> by_bound() const;
  std::size_t nodes() const { return nodes_; }

  /// How much shorter the longest chain is with the change. Here nothing begins before its launch
  /// does, on the path or not.
  std::int64_t SavedBy(const WhatIf& what_if) const;

 private:
  CriticalPath() = default;
  struct Builder;
  /// Longest distance with these weights; fills `path` where given. False where there is a cycle.
  bool Longest(const std::vector<double>& weights, bool assumed, double* length,
               std::vector<PathEdge>* path) const;

  const Trace* trace_ = nullptr;
  std::size_t nodes_ = 0;
  std::vector<PathEdge> all_;
  std::vector<bool> in_data_;          ///< By row of the trace.
  std::vector<std::uint32_t> parent_;  ///< By row of the trace.
  std::vector<PathEdge> path_;
  std::int64_t length_ns_ = 0;
};

}  // namespace telltale::analysis::trace
