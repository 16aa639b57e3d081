// SPDX-License-Identifier: Apache-2.0
// Cores of an XLA device that wait for each other.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kBarrierCores{
    "BarrierCores",
    "Do the cores of a device wait for each other?",
    "XProf smart suggestions: barrier-cores",
    "Time of operations named barrier-cores over the steps' time: medium from 10 %, high from 20 "
    "%.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kMuch = 0.1;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const Sum ns = TimeOf(rank, true, [](const NameTotal& name) {
          return HasAny(name.name, {"barrier-cores", "barrier_cores"});
        });
        const double share = rank.share(ns);
        if (share < kMuch) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = "Cores wait for each other";
        a.evidence["barrier_seconds"] = Rounded(Seconds(ns));
        a.cause = fmt::format("Barriers between cores take {} of the time.", Percent(share));
        a.advice = "Divide the work evenly: equal shards of tables and batches on all cores.";
        a.cost_seconds = Seconds(ns);
        a.share = share;
        a.assumption = "assumes that all cores could come at once";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
