// SPDX-License-Identifier: Apache-2.0
// An XLA device that waits for what the host feeds it.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kInfeedOutfeed{
    "InfeedOutfeed",
    "Does the device wait for infeed or outfeed?",
    "XProf input analyser: infeed, outfeed",
    "Time of operations named infeed or outfeed over the steps' time: low from 5 %, high from 20 "
    "%. "
    "Cost = that time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.05;
      constexpr double kMuch = 0.2;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const auto infeed = TimeOf(rank, true, [](const NameTotal& name) {
          return name.name.starts_with("infeed") || name.name.starts_with("Infeed");
        });
        const auto outfeed = TimeOf(rank, true, [](const NameTotal& name) {
          return name.name.starts_with("outfeed") || name.name.starts_with("Outfeed");
        });
        const double share = rank.share(infeed + outfeed);
        if (share < kSome) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = infeed >= outfeed ? "The device waits for its input"
                                    : "The device waits until its output is taken";
        a.evidence["infeed_seconds"] = Rounded(Seconds(infeed));
        a.evidence["outfeed_seconds"] = Rounded(Seconds(outfeed));
        a.cause = fmt::format("Infeed takes {} of the time, outfeed {}.",
                              Percent(rank.share(infeed)), Percent(rank.share(outfeed)));
        a.advice =
            infeed >= outfeed
                ? "Make the host's input faster (see InputPipeline), or run several steps in "
                  "one call (steps_per_execution)."
                : "Read results seldom: summaries and metrics each hundred steps.";
        a.cost_seconds = Seconds(infeed + outfeed);
        a.share = share;
        a.assumption = "assumes that input and output are always ready";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
