// SPDX-License-Identifier: Apache-2.0
// Calls in which the host waits for the device, which then waits for the host.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kHostWaits{
    "HostWaits",
    "Does the host wait for the device inside the step?",
    "nsys analyze: synchronization; msprof-analyze: synchronized streams",
    "Time in cudaStreamSynchronize, cudaDeviceSynchronize, cudaEventSynchronize, cudaMemcpy and "
    "their like, but not more than the devices idle, over the steps' time: low from 3 %, medium "
    "from 10 %. A wait for a device that stays busy costs nothing. Cost 0: other findings count "
    "the "
    "idle time.",
    "HostSync",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.1;
      return EachRank(run, true, [&](const RankFacts& rank) {
        Sum ns = 0;
        std::uint64_t count = 0;
        for (const NameTotal& name : rank.names) {
          if (name.on_device) continue;
          const bool waits = HasAny(name.name, {"Synchronize"}) || name.name == "cudaMemcpy" ||
                             name.name == "hipMemcpy" || name.name == "hipMemcpyWithStream";
          if (!waits) continue;
          ns += name.total_ns;
          count += name.count;
        }
        std::int64_t busy = 0;
        for (const DeviceFacts& device : rank.devices) busy = std::max(busy, device.busy_ns);
        const Sum lost = std::min(ns, std::max<Sum>(0, rank.wall_ns - busy));
        const double share = rank.share(lost);
        if (share < kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "The host waits for the device inside the step";
        a.evidence["waits"] = count;
        a.evidence["wait_seconds"] = Rounded(Seconds(ns));
        a.evidence["device_idle_seconds"] = Rounded(Seconds(rank.wall_ns - busy));
        a.cause = fmt::format(
            "{} calls wait {} in sum; after each the device has nothing to do until the host has "
            "launched again.",
            count, TimeWords(ns));
        a.advice =
            "Keep sums on the device and read them seldom; no .item(), .cpu() or print of a loss "
            "in "
            "each step; copy asynchronously from pinned memory.";
        a.share = share;
        a.confidence = 0.6;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
