// SPDX-License-Identifier: Apache-2.0
// Python's garbage collection inside the steps.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kGarbageCollection{
    "GarbageCollection",
    "Does garbage collection take time in the steps?",
    "msprof-analyze: garbage collection; XProf input analyser: all other (Python)",
    "Time of slices of the category gc over the steps' time: low from 1 %, medium from 5 %. Cost = "
    "that time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.01;
      constexpr double kMuch = 0.05;
      return EachRank(run, false, [&](const RankFacts& rank) {
        Sum ns = 0;
        std::uint64_t count = 0;
        for (const NameTotal& name : rank.names) {
          if (name.category != trace::Category::kGc) continue;
          ns += name.total_ns;
          count += name.count;
        }
        const double share = rank.share(ns);
        if (share < kSome) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = "Garbage collection inside the steps";
        a.evidence["collections"] = count;
        a.evidence["gc_seconds"] = Rounded(Seconds(ns));
        a.cause = fmt::format("{} collections take {} of the time.", count, Percent(share));
        a.advice =
            "gc.freeze() after the model is built, gc.disable() and a collection each few hundred "
            "steps, on all ranks at the same step.";
        a.cost_seconds = Seconds(ns);
        a.share = share;
        a.assumption = "assumes that collections outside of steps cost nothing";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
