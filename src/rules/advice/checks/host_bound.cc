// SPDX-License-Identifier: Apache-2.0
// Time in which the device idles while the host computes.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kHostBound{
    "HostBound",
    "How much time does the host take in which the device has nothing to do?",
    "XProf input analyser: all other (Python), potentially input-bound; tensor cores idle for "
    "reasons of the host",
    "cpu_exec and other of the step breakdown over the steps' time: low from 3 %, medium from 15 "
    "%, "
    "high from 20 %. With input below 5 % it may be I/O or Python that no operator tells of. Cost "
    "= "
    "that time. Not where no device works: the host is then what computes.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.15;
      constexpr double kInput = 0.05;
      return EachRank(run, true, [&](const RankFacts& rank) {
        using trace::StepRole;
        const Sum exec = rank.role(StepRole::kCpuExec);
        const Sum other = rank.role(StepRole::kOther);
        const double share = rank.share(exec + other);
        if (share < kSome) return;
        const NameTotal* most = nullptr;
        for (const NameTotal& name : rank.names) {
          if (name.on_device || name.category == trace::Category::kRuntime) continue;
          if (most == nullptr || name.self_ns > most->self_ns) most = &name;
        }
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = "The device waits for the host";
        a.evidence["host_operators"] = Rounded(rank.share(exec));
        a.evidence["other"] = Rounded(rank.share(other));
        const double input = rank.share(rank.role(StepRole::kDataLoader));
        a.evidence["input"] = Rounded(input);
        if (most != nullptr) {
          a.evidence["longest"] = most->name;
          a.evidence["longest_seconds"] = Rounded(Seconds(most->self_ns));
        }
        a.cause = fmt::format(
            "In {} of the time the device has nothing to do while the host runs operators ({}) or "
            "something that the trace has no name for ({}).",
            Percent(share), Percent(rank.share(exec)), Percent(rank.share(other)));
        if (input < kInput && other > exec) {
          a.cause += " It may be input (reading, decoding) or other Python.";
        }
        a.advice =
            "Give the device larger pieces of work (batch size, torch.compile, CUDA graphs, fused "
            "optimizers); record Python stacks (with_stack=True) to see what runs in between.";
        a.cost_seconds = Seconds(exec + other);
        a.share = share;
        a.assumption = "assumes that the host could run ahead of the device";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
