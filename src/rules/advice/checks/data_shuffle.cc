// SPDX-License-Identifier: Apache-2.0
// Work of a device that only moves data to another place or shape.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kDataShuffle{
    "DataShuffle",
    "Does the device mostly move data about?",
    "XProf smart suggestions: data shuffle",
    "Time of kernels named transpose, permute, reshape, shuffle, concatenate, all-to-all or copy, "
    "over the time of kernels: low from 15 %, medium from 30 %. Cost 0: some of it is needed.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.15;
      constexpr double kMuch = 0.3;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const auto kernels = TimeOf(rank, true, [](const NameTotal& name) {
          return name.category == trace::Category::kKernel;
        });
        const auto moves = TimeOf(rank, true, [](const NameTotal& name) {
          return name.category == trace::Category::kKernel &&
                 HasAny(name.name, {"transpose", "Transpose", "permute", "reshape", "Shuffle",
                                    "shuffle", "CatArrayBatchedCopy", "concatenate", "all-to-all",
                                    "direct_copy_kernel", "copy."});
        });
        const double share = ShareOf(moves, kernels);
        if (share < kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "Kernels that only move data";
        a.evidence["moving_seconds"] = Rounded(Seconds(moves));
        a.evidence["of_kernels"] = Rounded(share);
        a.cause = fmt::format("{} of the kernels' time copies, transposes and joins tensors.",
                              Percent(share));
        a.advice =
            "Keep one layout from layer to layer, write into a buffer made before instead of "
            "joining, and let a compiler fuse what is left (torch.compile, XLA).";
        a.share = rank.share(moves);
        a.confidence = 0.6;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
