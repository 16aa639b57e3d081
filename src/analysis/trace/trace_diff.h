// SPDX-License-Identifier: Apache-2.0
// What another trace does more, less or for longer: counts and durations of slices by name, of
// chosen steps of either. HolisticTraceAnalysis' trace diff.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

enum class OpChange : std::uint8_t { kAdded, kDeleted, kIncreased, kDecreased, kUnchanged };
inline constexpr std::array<std::string_view, 5> kOpChangeNames = {"added", "deleted", "increased",
                                                                   "decreased", "unchanged"};

struct OpCounts {
  std::uint64_t count = 0;
  Sum sum_ns = 0;
};
struct OpDiff {
  std::string name;
  OpCounts control;
  OpCounts test;
  OpChange change() const;  ///< By counts.
  /// Neither is below zero, so it has an absolute value.
  std::int64_t difference_ns() const { return (test.sum_ns - control.sum_ns).value(); }
};

enum class DiffDevice : std::uint8_t { kAll, kCpu, kGpu };

/// Of the slices of these steps; without steps, of the first that the trace marks, and of all where
/// it marks none. What a device did belongs to the step that launched it. The largest difference of
/// time first.
std::vector<OpDiff> TraceDiffOf(const Trace& control, const Trace& test,
                                const std::vector<std::int64_t>& control_steps,
                                const std::vector<std::int64_t>& test_steps, DiffDevice device,
                                bool short_names);

/// Without arguments, template arguments and what stands before the name.
std::string ShortName(std::string_view name);

}  // namespace telltale::analysis::trace
