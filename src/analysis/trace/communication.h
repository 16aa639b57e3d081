// SPDX-License-Identifier: Apache-2.0
// What share of its steps each rank spends in communication: as the steps of the run and the spans
// of its collectives say, as DistributedDataParallel measures itself, and as a profiler's trace has
// it. A run needs no trace for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/saturate.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::analysis::trace {

/// Of one rank's TRAIN steps.
struct StepCommunication {
  std::uint64_t steps = 0;
  Sum step_ns = 0;  ///< Of the steps' durations.
  Sum wait_ns = 0;  ///< Of that, in which the training waited for other ranks.
};

/// Calls of one collective by one rank, in its TRAIN steps.
struct CollectiveTotal {
  std::uint64_t calls = 0;
  Sum total_ns = 0;
  std::int64_t bytes = -1;  ///< Of all its calls in the run; -1: not known.
};

/// What a DistributedDataParallel says of a step; it calls no collective from Python.
struct ParallelStep {
  std::int64_t communication_ns = 0;
  std::int64_t overlap_ns = 0;  ///< Of that, while the backward computed.
};

/// A program may make a name of each call: those beyond so many in a run are one.
inline constexpr std::size_t kMostOperations = 256;
inline constexpr std::string_view kOtherOperations = "(one of too many names)";

struct RecordedCommunication {
  std::map<std::int32_t, StepCommunication> ranks;
  std::map<std::pair<std::int32_t, std::string>, CollectiveTotal> collectives;  ///< all_reduce, …
  std::map<std::int32_t, ParallelStep> parallel;
};

/// Of the tables steps, spans and events. Damage is counted in `salvage`.
Result<RecordedCommunication> RecordedCommunicationOf(const std::filesystem::path& run,
                                                      store::Salvage* salvage);

}  // namespace telltale::analysis::trace
