// SPDX-License-Identifier: Apache-2.0
// Copies between host and device that the device waits for.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kDataTransfer{
    "DataTransfer",
    "Do copies between host and device take time?",
    "XProf smart suggestions: data transfer; XProf input analyser: host to device",
    "Copies of the step breakdown (beside no kernel) over the steps' time: low from 3 %, medium "
    "from 10 %; low also where copies from pageable memory take half a percent of it and 30 % of "
    "the input's time. Cost = the copies that no kernel hides.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.1;
      constexpr double kSomePageable = 0.005;
      constexpr double kOfInput = 0.3;
      return EachRank(run, true, [&](const RankFacts& rank) {
        Sum to_device = 0;
        Sum pageable = 0;
        Sum bytes = 0;
        std::uint64_t copies = 0;
        for (const NameTotal& name : rank.names) {
          if (!name.on_device || name.category != trace::Category::kMemcpy) continue;
          if (!HasAny(name.name, {"HtoD", "H2D", "infeed", "DtoH", "D2H"})) continue;
          copies += name.count;
          bytes += name.bytes;
          if (HasAny(name.name, {"HtoD", "H2D"})) to_device += name.total_ns;
          if (HasAny(name.name, {"Pageable", "pageable"})) pageable += name.total_ns;
        }
        const Sum exposed = rank.role(trace::StepRole::kMemcpy);
        const Sum input = rank.role(trace::StepRole::kDataLoader) + to_device;
        const double share = rank.share(exposed);
        const bool from_pageable =
            rank.share(pageable) >= kSomePageable && ShareOf(to_device, input) >= kOfInput;
        if (copies == 0 || (share < kSome && !from_pageable)) return;
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = pageable > 0 ? "Copies from pageable memory of the host"
                               : "Copies between host and device";
        a.evidence["copies"] = copies;
        a.evidence["bytes"] = bytes.value();
        a.evidence["exposed_seconds"] = Rounded(Seconds(exposed));
        a.evidence["pageable_seconds"] = Rounded(Seconds(pageable));
        a.evidence["of_input"] = Rounded(ShareOf(to_device, input));
        a.cause =
            fmt::format("{} copies of {} MB in sum take {} of the time with no kernel beside them.",
                        copies, Plain(static_cast<double>(bytes) / 1e6), Percent(share));
        a.advice =
            pageable > 0
                ? "pin_memory=True in the DataLoader and .to(device, non_blocking=True): the "
                  "copy is then faster and runs beside kernels."
                : "Copy the next batch while this one is computed (a stream of its own), and "
                  "copy smaller types: uint8 images, normalised on the device.";
        a.cost_seconds = Seconds(exposed);
        a.share = share;
        a.assumption = "assumes that all copies could run beside kernels";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
