// SPDX-License-Identifier: Apache-2.0
// Graphs that are traced or compiled again after the first step.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kRetracing{
    "Retracing",
    "Is the model traced or compiled again and again?",
    "XProf overview: tf.function retracing",
    "Slices of the category compile that begin after the first step, those within each other once, "
    "over the steps' time: low from 1 %, medium from 10 %, at least two of them. Cost = their "
    "time.",
    "RecompileStorm",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.01;
      constexpr double kMuch = 0.1;
      bool compiles = false;
      const RuleStatus status = EachRank(run, false, [&](const RankFacts& rank) {
        compiles = compiles || rank.first_compile_ns >= 0;
        const double share = rank.share(rank.late_compile_ns);
        if (rank.late_compiles < 2 || share < kSome) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = "The model is compiled again while it trains";
        a.evidence["compilations"] = rank.late_compiles;
        a.evidence["compile_seconds"] = Rounded(Seconds(rank.late_compile_ns));
        a.cause = fmt::format("{} compilations after the first step take {} of the time.",
                              rank.late_compiles, Percent(share));
        a.advice =
            "Give all batches one shape (drop_last, padding to a few lengths) and tensors instead "
            "of "
            "Python numbers; tf.function(reduce_retracing=True), torch.compile(dynamic=True).";
        a.cost_seconds = Seconds(rank.late_compile_ns);
        a.share = share;
        a.assumption = "assumes that the first compilation is enough";
        out->Add(rank, std::move(a));
      });
      return status == RuleStatus::kNoIssuesFound && !compiles ? RuleStatus::kNotApplicable
                                                               : status;
    }};

}  // namespace telltale::rules::advice
