// SPDX-License-Identifier: Apache-2.0
// One process that drives several devices with DataParallel.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kDataParallel{
    "DataParallel",
    "Does one process drive several devices?",
    "PyTorch plug-in: DP",
    "Slices named DataParallel.forward (not DistributedDataParallel) in a rank with work on more "
    "than one device: medium. Cost 0: what it costs is in KernelLaunch and AcceleratorUtilization.",
    "",
    [](const RunFacts& run, Findings* out) {
      return EachRank(run, true, [&](const RankFacts& rank) {
        if (rank.devices.size() < 2) return;
        const bool found =
            std::any_of(rank.names.begin(), rank.names.end(), [](const NameTotal& name) {
              return !name.on_device && HasAny(name.name, {"DataParallel.forward"}) &&
                     !HasAny(name.name, {"DistributedDataParallel", "FullyShardedDataParallel"});
            });
        if (!found) return;
        Advised a;
        a.severity = Severity::kMedium;
        a.title = "One process drives several devices";
        a.evidence["devices"] = nlohmann::ordered_json::array();
        for (const DeviceFacts& device : rank.devices) {
          a.evidence["devices"].push_back(
              {{"device", device.device}, {"utilization", Rounded(rank.share(device.busy_ns))}});
        }
        a.cause =
            "DataParallel copies the model to every device in each step, gathers the outputs on "
            "the "
            "first, and its threads share one interpreter.";
        a.advice =
            "Use DistributedDataParallel, one process for each device: torchrun "
            "--nproc-per-node=N train.py.";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
