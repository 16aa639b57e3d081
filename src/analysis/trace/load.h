// SPDX-License-Identifier: Apache-2.0
// Traces out of a run's table `slices`: one rank at a time, only the columns that an analysis
// reads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::analysis::trace {

/// Which writers hold slices of which rank: found once, then each rank is loaded by itself.
using RankWriters = std::map<std::int32_t, std::vector<std::string>>;

/// Code::kUnusable where the run holds no slices: what to record is in the message.
Result<RankWriters> FindRanks(const std::filesystem::path& run);

/// `ranks` holds `rank`. Damage is counted in `salvage`.
Result<Trace> LoadTrace(const std::filesystem::path& run, const RankWriters& ranks,
                        std::int32_t rank, Needs needs, store::Salvage* salvage);

/// What the first device of the rank's trace is called, by the event `trace.source` of its import;
/// empty where nothing says so.
std::string DeviceNameOf(const std::filesystem::path& run, std::int32_t rank);

}  // namespace telltale::analysis::trace
