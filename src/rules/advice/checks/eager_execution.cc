// SPDX-License-Identifier: Apache-2.0
// TensorFlow operators that run one by one instead of in a graph.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kEagerExecution{
    "EagerExecution",
    "Do TensorFlow operators run outside of tf.function?",
    "XProf overview: eager time",
    "Time in EagerLocalExecute, EagerExecute and EagerKernelExecute on the host over the steps' "
    "time: low from 10 %, medium from 50 %. Cost 0: HostBound and KernelLaunch count it.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.1;
      constexpr double kMuch = 0.5;
      return EachRank(run, false, [&](const RankFacts& rank) {
        Sum ns = 0;
        std::uint64_t count = 0;
        for (const NameTotal& name : rank.names) {
          // They nest in this order: the outermost has all of the time.
          for (const std::string_view word :
               {"EagerExecute", "EagerLocalExecute", "EagerKernelExecute"}) {
            if (name.on_device || !name.name.starts_with(word) || name.total_ns <= ns) continue;
            ns = name.total_ns;
            count = name.count;
          }
        }
        const double share = rank.share(ns);
        if (share < kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "Operators run one by one";
        a.evidence["eager_seconds"] = Rounded(Seconds(ns));
        a.evidence["eager_operators"] = count;
        a.cause =
            fmt::format("The host executes operators eagerly in {} of the time.", Percent(share));
        a.advice = "Put the step into a tf.function (model.compile(run_eagerly=False)).";
        a.share = share;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
