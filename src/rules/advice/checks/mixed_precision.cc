// SPDX-License-Identifier: Apache-2.0
// Matrix products that could use tensor cores and do not.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kMixedPrecision{
    "MixedPrecision",
    "Could tensor cores do what is computed without them?",
    "PyTorch plug-in: AMP; XProf overview: share of 16-bit operations",
    "Kernels whose names say tensor cores (cuBLASLt's nvjet, CUTLASS 3, FlashAttention and matrix "
    "cores of AMD too) below 10 % of the kernels' time, and kernels launched by operators that "
    "autocast runs in half precision at least 5 %: low, medium from 20 % where a twentieth of the "
    "steps would be saved, nothing where it is less than half a percent. Not on devices of compute "
    "capability below 7. Cost = half of the time of these kernels.",
    "PrecisionAdvice",
    [](const RunFacts& run, Findings* out) {
      constexpr double kUsed = 0.1;
      constexpr double kSome = 0.05;
      constexpr double kMuch = 0.2;
      constexpr double kLeast = 0.005;  // Of the steps: less is not worth a change.
      constexpr double kWorthMuch = 0.05;
      return EachRank(run, true, [&](const RankFacts& rank) {
        Sum all = 0;
        Sum tensor = 0;
        for (const DeviceFacts& device : rank.devices) {
          all += device.kernel_ns;
          tensor += device.tensor_ns;
        }
        if (rank.compute_major > 0 && rank.compute_major < 7) return;
        const double used = ShareOf(tensor, all);
        const double eligible = rank.eligible_share;
        if (all == 0 || used >= kUsed || !(eligible >= kSome)) return;
        const auto kernels = TimeOf(rank, true, [](const NameTotal& name) {
          return name.category == trace::Category::kKernel;
        });
        const double saved = static_cast<double>(kernels) * std::max(0.0, eligible - used) / 2;
        const double share = rank.share(SaturatingCast(saved));
        if (share < kLeast) return;
        Advised a;
        a.severity = eligible >= kMuch && share >= kWorthMuch ? Severity::kMedium : Severity::kLow;
        a.title = "Tensor cores are not used";
        a.evidence["tensor_core_share"] = Rounded(used);
        a.evidence["eligible_share"] = Rounded(eligible);
        if (!rank.device_name.empty()) a.evidence["device"] = rank.device_name;
        a.cause = fmt::format(
            "{} of the kernels' time is of operators that tensor cores could do; {} is done by "
            "them.",
            Percent(eligible), Percent(used));
        a.advice =
            "Automatic mixed precision: torch.autocast(\"cuda\", dtype=torch.bfloat16), or "
            "torch.set_float32_matmul_precision(\"high\") for TF32; sizes that are multiples of 8.";
        a.cost_seconds = saved / 1e9;
        a.share = share;
        a.assumption = "assumes that these kernels take half as long in 16 bits";
        // A device that the trace does not name may have none.
        a.confidence = rank.compute_major >= 7 || rank.peak_flops > 0 ? 0.8 : 0.5;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
