// SPDX-License-Identifier: Apache-2.0
// Ranks with devices that talk to each other over the host.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kCommunicationBackend{
    "CommunicationBackend",
    "Do ranks with GPUs use NCCL?",
    "PyTorch plug-in: NCCL",
    "Collectives named gloo: or mpi:, or a trace that names such a backend, beside kernels of a "
    "device: medium. Devices of compute capability below 3 are left out. Cost 0: "
    "CommunicationBound counts the time.",
    "",
    [](const RunFacts& run, Findings* out) {
      bool talks = false;
      const RuleStatus status = EachRank(run, true, [&](const RankFacts& rank) {
        const auto slow = [](const NameTotal& name) {
          return name.name.starts_with("gloo:") || name.name.starts_with("mpi:");
        };
        const bool nccl =
            HasAny(rank.backend, {"nccl", "rccl"}) ||
            std::any_of(rank.names.begin(), rank.names.end(),
                        [](const NameTotal& name) { return name.name.starts_with("nccl"); });
        const Sum ns = TimeOf(rank, false, slow);
        const bool other = ns > 0 || HasAny(rank.backend, {"gloo", "mpi"});
        talks = talks || nccl || other;
        if (!other || (nccl && ns == 0)) return;
        if (rank.compute_major > 0 && rank.compute_major < 3) return;
        Advised a;
        a.severity = Severity::kMedium;
        a.title = "Ranks with GPUs talk over the host";
        a.evidence["backend"] = rank.backend.empty() ? "gloo" : rank.backend;
        a.evidence["host_seconds"] = Rounded(Seconds(ns));
        a.cause = "Gradients go through the memory of the host and its network stack.";
        a.advice = "Use the backend nccl: torch.distributed.init_process_group(\"nccl\").";
        a.share = rank.share(ns);
        out->Add(rank, std::move(a));
      });
      return status == RuleStatus::kNoIssuesFound && !talks ? RuleStatus::kNotApplicable : status;
    }};

}  // namespace telltale::rules::advice
