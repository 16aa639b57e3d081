// SPDX-License-Identifier: Apache-2.0
// Traces out of a run's table `slices`: one rank at a time, only the columns that an analysis
// reads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::analysis::trace {

/// Which writers hold slices of which rank: found once, then each rank is loaded by itself.
using RankWriters = std::map<std::int32_t, std::vector<std::string>>;

/// Each rank is loaded by itself, out of all that its writers have: more ranks than a run can have
/// would take forever. An import makes a writer of each rank; the ranks of one machine are few.
inline constexpr std::size_t kMostRanks = 4096;
inline constexpr std::size_t kMostRanksOfWriter = 256;

/// Beyond the bounds only those of `asked`; how many ranks are left out goes to `left_out`.
/// Code::kUnusable where the run holds no slices: what to record is in the message.
Result<RankWriters> FindRanks(const std::filesystem::path& run,
                              const std::vector<std::int32_t>& asked = {},
                              std::uint64_t* left_out = nullptr);

/// `ranks` holds `rank`. Damage is counted in `salvage`. Code::kLimit where the trace takes more
/// than `most_bytes`, by default half of the memory that is left.
Result<Trace> LoadTrace(const std::filesystem::path& run, const RankWriters& ranks,
                        std::int32_t rank, Needs needs, store::Salvage* salvage,
                        std::optional<std::uint64_t> most_bytes = std::nullopt);

/// What the first device of the rank's trace is called, by the event `trace.source` of its import;
/// empty where nothing says so.
std::string DeviceNameOf(const std::filesystem::path& run, std::int32_t rank);

}  // namespace telltale::analysis::trace
