// SPDX-License-Identifier: Apache-2.0
// A file timeline-[STEP].json for each step, laid out as TensorFlow's ProfilerHook writes them: the
// group Allocators, then `<device> Compute` and `<device> Tensors` for each device.
// docs/guide/export.md.
//
// Memory: that of the options, and what one step has: its launches and its tensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::interchange {

struct TimelineOptions {
  std::size_t memory_bytes = 96 << 20;
  /// This step alone.
  std::optional<std::int64_t> step;
  /// Which operators and kernels; all where there is none.
  std::function<bool(const format::SliceRow&)> keeps;
  /// Path of a step's file.
  std::function<std::filesystem::path(std::int64_t step)> path;
};

struct TimelineReport {
  std::vector<std::filesystem::path> files;
  std::uint64_t slices = 0;
  std::uint64_t outside = 0;  ///< Of no step: in no file.
  store::Salvage salvage;
};

/// Code::kUnusable: no step with slices in it.
Result<TimelineReport> ExportTimelines(const std::filesystem::path& run,
                                       const TimelineOptions& options);

}  // namespace telltale::interchange
