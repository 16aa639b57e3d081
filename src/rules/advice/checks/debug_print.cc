// SPDX-License-Identifier: Apache-2.0
// Printing from within the step.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kDebugPrint{
    "DebugPrint",
    "Does printing inside the step take time?",
    "XProf smart suggestions: debug_print",
    "Time of debug_print and debug_callback on the device and of print on the host, over the "
    "steps' "
    "time: low from 1 %, medium from 5 %. Cost = that time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.01;
      constexpr double kMuch = 0.05;
      return EachRank(run, false, [&](const RankFacts& rank) {
        Sum ns = 0;
        for (const NameTotal& name : rank.names) {
          if (HasAny(name.name, {"debug_print", "debug-print", "debug_callback"})) {
            ns += name.on_device ? name.total_ns : name.self_ns;
          } else if (!name.on_device &&
                     HasAny(name.name,
                            {"built-in function print", "builtins.print", "tf.print", "PrintV2"})) {
            ns += std::max(name.self_ns, name.host_ns);
          }
        }
        const double share = rank.share(ns);
        if (share < kSome) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = "Printing inside the step";
        a.evidence["print_seconds"] = Rounded(Seconds(ns));
        a.cause = fmt::format("{} of the time goes to printing.", Percent(share));
        a.advice = "Print each hundredth step, or let the logger do it after the step.";
        a.cost_seconds = Seconds(ns);
        a.share = share;
        a.assumption = "assumes that nothing else would wait in its place";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
