// SPDX-License-Identifier: Apache-2.0
// Kernels that only change the layout of images between NCHW and NHWC.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kDataFormat{
    "DataFormat",
    "Is the layout of images the one that the kernels want?",
    "tfprof OperationChecker: NHWC data_format",
    "Kernels that convert NCHW to NHWC or back, over the time of kernels: low from 2 %, medium "
    "from "
    "10 %, nothing below half a percent of the steps. tfprof looks at the operators' attribute and "
    "always says NCHW; here the kernels say which layout they want. Cost = their time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.02;
      constexpr double kMuch = 0.1;
      constexpr double kLeast = 0.005;  // Of the steps.
      return EachRank(run, true, [&](const RankFacts& rank) {
        const auto kernels = TimeOf(rank, true, [](const NameTotal& name) {
          return name.category == trace::Category::kKernel;
        });
        const auto to_last = TimeOf(rank, true, [](const NameTotal& name) {
          return HasAny(name.name, {"nchwToNhwc", "NCHWToNHWC", "nchw_to_nhwc"});
        });
        const auto to_first = TimeOf(rank, true, [](const NameTotal& name) {
          return HasAny(name.name, {"nhwcToNchw", "NHWCToNCHW", "nhwc_to_nchw", "nhwcToFoldedNhwc",
                                    "SwapDimension1And2InTensor3"});
        });
        const double share = ShareOf(to_last + to_first, kernels);
        if (share < kSome || rank.share(to_last + to_first) < kLeast) return;
        // Each convolution converts there and back: the way in says what the model has.
        const bool has_first = to_last >= to_first;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "Kernels convert the layout of images";
        a.evidence["nchw_to_nhwc_seconds"] = Rounded(Seconds(to_last));
        a.evidence["nhwc_to_nchw_seconds"] = Rounded(Seconds(to_first));
        a.evidence["of_kernels"] = Rounded(share);
        a.cause = fmt::format(
            "{} of the kernels' time changes NCHW into NHWC or back, as the fastest kernels want "
            "the other layout.",
            Percent(share));
        a.advice = has_first ? "Keep images in NHWC: model.to(memory_format=torch.channels_last), "
                               "and the inputs too."
                             : "Keep images in NCHW: data_format='NCHW' (channels_first).";
        a.cost_seconds = Seconds(to_last + to_first);
        a.share = rank.share(to_last + to_first);
        a.assumption = "assumes that no conversion is needed in the other layout";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
