// SPDX-License-Identifier: Apache-2.0
// Batch normalisation made of single operators.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kUnfusedBatchNorm{
    "UnfusedBatchNorm",
    "Is batch normalisation one kernel?",
    "tfprof OperationChecker: FusedBatchNorm",
    "Nodes, modules or ranges named BatchNorm in a trace without a fused operator or kernel of it "
    "(FusedBatchNorm, cudnn_batch_norm, native_batch_norm, bn_fw and their like): low. Cost 0: "
    "what "
    "a fused one takes is not known.",
    "",
    [](const RunFacts& run, Findings* out) {
      bool any = false;
      const RuleStatus status = EachRank(run, false, [&](const RankFacts& rank) {
        bool fused = false;
        Sum ns = 0;
        std::uint64_t count = 0;
        const NameTotal* example = nullptr;
        for (const NameTotal& name : rank.names) {
          fused = fused || HasAny(name.name, {"FusedBatchNorm", "cudnn_batch_norm",
                                              "miopen_batch_norm", "native_batch_norm", "bn_fw",
                                              "bn_bw", "batch_norm_collect_statistics",
                                              "batch_norm_cpu", "batch_norm_transform"});
          if (!HasAny(name.name, {"BatchNorm", "batchnorm", "batch_norm", "batch_normalization"})) {
            continue;
          }
          ns += std::max(name.host_ns, name.self_ns) + (name.on_device ? Sum(0) : name.device_ns);
          count += name.count;
          if (example == nullptr) example = &name;
        }
        any = any || fused || example != nullptr;
        if (fused || example == nullptr) return;
        Advised a;
        a.severity = Severity::kLow;
        a.title = "Batch normalisation is not fused";
        a.evidence["example"] = example->name;
        a.evidence["count"] = count;
        a.evidence["seconds"] = Rounded(Seconds(ns));
        a.cause = "It runs as several operators, each of which reads and writes all activations.";
        a.advice =
            "Use the framework's own layer: fused=True (TensorFlow), torch.nn.BatchNorm2d, or let "
            "torch.compile fuse it.";
        a.share = std::min(1.0, rank.share(ns));
        a.confidence = 0.6;
        out->Add(rank, std::move(a));
      });
      return status == RuleStatus::kNoIssuesFound && !any ? RuleStatus::kNotApplicable : status;
    }};

}  // namespace telltale::rules::advice
