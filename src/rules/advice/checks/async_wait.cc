// SPDX-License-Identifier: Apache-2.0
// Operations of an XLA device that only wait for an asynchronous one to end.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kAsyncWait{
    "AsyncWait",
    "Does the device wait for its own asynchronous copies?",
    "XProf smart suggestions: async-done",
    "Time of operations named …-done over the steps' time: low above 10 %, medium from 30 %. "
    "Applies to traces of XLA devices.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.1;
      constexpr double kMuch = 0.3;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const Sum ns = TimeOf(rank, true, [](const NameTotal& name) {
          return name.name.ends_with("-done") || HasAny(name.name, {"-done."});
        });
        const double share = rank.share(ns);
        if (share <= kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "The device waits for asynchronous copies";
        a.evidence["done_seconds"] = Rounded(Seconds(ns));
        a.cause = fmt::format("Operations that only wait for a copy to end take {} of the time.",
                              Percent(share));
        a.advice =
            "Start copies earlier (prefetch, larger latency-hiding window of the scheduler), and "
            "look whether memory bandwidth is what they need.";
        a.cost_seconds = Seconds(ns);
        a.share = share;
        a.assumption = "assumes that the copies could run behind computation";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
