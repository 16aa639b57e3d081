// SPDX-License-Identifier: Apache-2.0
// Communication between ranks that no computation hides.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kCommunicationBound{
    "CommunicationBound",
    "How much of the time goes to communication that nothing hides?",
    "PyTorch plug-in: communication; XProf: device collectives, all-reduce; smart suggestions: "
    "collectives",
    "Communication of the step breakdown, which is what no kernel or copy hides, over the steps' "
    "time: low from 3 %, medium from 10 %, high from 20 %. Of XLA devices the time of all-reduce, "
    "all-gather, reduce-scatter, all-to-all and collective-permute: medium from 6 %. Cost = that "
    "time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.1;
      constexpr double kMuchXla = 0.06;
      bool talks = false;
      const RuleStatus status = EachRank(run, false, [&](const RankFacts& rank) {
        const auto xla = [](const NameTotal& name) {
          return HasAny(name.name, {"all-reduce", "all-gather", "reduce-scatter", "all-to-all",
                                    "collective-permute"});
        };
        Sum exposed = rank.role(trace::StepRole::kCommunication);
        const bool of_xla = exposed == 0 && rank.communication_ns == 0;
        if (of_xla) exposed = TimeOf(rank, true, xla);
        talks = talks || exposed > 0 || rank.communication_ns > 0;
        const double share = rank.share(exposed);
        if (share < kSome) return;
        Advised a;
        a.severity = SeverityOf(share, of_xla ? kMuchXla : kMuch);
        a.title = "Communication that nothing hides";
        a.evidence["exposed_seconds"] = Rounded(Seconds(exposed));
        a.evidence["communication_seconds"] =
            Rounded(Seconds(of_xla ? exposed : rank.communication_ns));
        a.evidence["hidden_share"] =
            Rounded(of_xla ? 0 : ShareOf(rank.overlap_ns, rank.communication_ns));
        a.cause =
            fmt::format("The ranks talk to each other in {} of the time, beside no computation.",
                        Percent(share));
        a.advice =
            "Overlap it with the backward pass (buckets of DistributedDataParallel, gradient as "
            "bucket view), accumulate gradients over several batches, compress them, or enlarge "
            "the "
            "batch. Where ranks come late, SlowRank says which.";
        a.cost_seconds = Seconds(exposed);
        a.share = share;
        a.assumption = "assumes that computation could hide all of it";
        out->Add(rank, std::move(a));
      });
      return status == RuleStatus::kNoIssuesFound && !talks ? RuleStatus::kNotApplicable : status;
    }};

}  // namespace telltale::rules::advice
