// SPDX-License-Identifier: Apache-2.0
// Tensors that TensorFlow workers fetch from each other or from parameter servers.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kRemoteTransfers{
    "RemoteTransfers",
    "How long do tensors take from other tasks?",
    "tfprof JobChecker: RecvTensor",
    "Slices named RecvTensor: number, mean latency, bandwidth where the trace has bytes, and their "
    "share of the steps' time: low from 3 %, medium from 15 %. Cost 0: transfers run beside each "
    "other and beside computation.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.15;
      bool any = false;
      const RuleStatus status = EachRank(run, false, [&](const RankFacts& rank) {
        Sum ns = 0;
        Sum bytes = 0;
        std::uint64_t count = 0;
        for (const NameTotal& name : rank.names) {
          if (!HasAny(name.name, {"RecvTensor"})) continue;
          ns += name.total_ns;
          bytes += name.bytes;
          count += name.count;
        }
        any = any || count > 0;
        const double share = rank.share(ns);
        if (share < kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "Tensors come from other tasks";
        a.evidence["transfers"] = count;
        a.evidence["mean_latency_us"] =
            Rounded(static_cast<double>(ns) / static_cast<double>(count) / 1e3);
        if (bytes > 0) {
          a.evidence["bytes"] = bytes.value();
          a.evidence["gigabytes_per_second"] =
              Rounded(static_cast<double>(bytes) / static_cast<double>(std::max<Sum>(1, ns)));
        }
        a.cause =
            fmt::format("{} transfers of {} each take {} of the steps' time.", count,
                        TimeWords(ns.value() / static_cast<std::int64_t>(count)), Percent(share));
        a.advice =
            "Spread variables over more parameter servers, or use collectives "
            "(MultiWorkerMirroredStrategy); place what exchanges much on one machine.";
        a.share = share;
        a.confidence = 0.6;
        out->Add(rank, std::move(a));
      });
      return status == RuleStatus::kNoIssuesFound && !any ? RuleStatus::kNotApplicable : status;
    }};

}  // namespace telltale::rules::advice
