// SPDX-License-Identifier: Apache-2.0
// A device's memory that is almost full.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kMemoryPressure{
    "MemoryPressure",
    "Is a device's memory almost full?",
    "PyTorch plug-in: memory",
    "Most bytes that the allocator reserved, by the trace's memory events, over the device's "
    "memory, "
    "by the trace's device properties: medium above 90 %. Needs profile_memory=True. Cost 0: "
    "nothing is lost before it is full.",
    "MemoryForecast",
    [](const RunFacts& run, Findings* out) {
      constexpr double kFull = 0.9;
      RuleStatus status = RuleStatus::kNoData;
      for (const RankFacts& rank : run.ranks) {
        if (rank.peak_memory <= 0 || rank.device_memory <= 0) continue;
        status = RuleStatus::kNoIssuesFound;
        const double share = ShareOf(rank.peak_memory, rank.device_memory);
        if (share <= kFull) continue;
        Advised a;
        a.severity = Severity::kMedium;
        a.title = "The device's memory is almost full";
        a.evidence["peak_bytes"] = rank.peak_memory;
        a.evidence["device_bytes"] = rank.device_memory;
        a.evidence["of_memory"] = Rounded(share);
        a.cause = fmt::format("At most {} of the device's memory was reserved.", Percent(share));
        a.advice =
            "Gradient checkpointing, mixed precision, smaller batches with gradient accumulation, "
            "or "
            "a sharded optimizer: one longer sample may end the run.";
        out->Add(rank, std::move(a));
      }
      return status;
    }};

}  // namespace telltale::rules::advice
