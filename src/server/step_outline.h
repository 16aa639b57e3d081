// SPDX-License-Identifier: Apache-2.0
// The step times of a long run before its records are read: four columns of the sealed segments of
// the table steps. What a page shows of a run of a million steps at first, instead of its first
// seconds. What cannot be read is left out: the records' own reader counts it.
//
// Thread safety: none. Memory: at most kMaxOutlinePoints points of 28 bytes.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "server/series.h"

namespace telltale::server {

inline constexpr std::size_t kMaxOutlinePoints = 2'000'000;

struct StepOutline {
  std::int32_t rank = 0;  ///< The lowest with TRAIN steps, whose steps these are.
  Series duration;        ///< ns, over the time since `begin_ns`.
  /// Begin and number of some of the steps, by time.
  std::vector<std::pair<std::int64_t, std::int64_t>> marks;
  bool whole = true;  ///< All segments are in it; else some of them, spread over the run.
};

/// Reads until about `deadline`. None where there are fewer than two segments with steps: their
/// records are read as fast.
std::optional<StepOutline> ReadStepOutline(const std::filesystem::path& run, std::int64_t begin_ns,
                                           std::chrono::steady_clock::time_point deadline);

}  // namespace telltale::server
