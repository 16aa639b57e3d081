// SPDX-License-Identifier: Apache-2.0
// A device that stands idle for more than half of the steps, and what it waits for.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kAcceleratorUtilization{
    "AcceleratorUtilization",
    "Does a device work for at least half of the steps' time?",
    "tfprof AcceleratorUtilizationChecker; PyTorch plug-in: GPU utilization; XProf: idle tensor "
    "cores",
    "Union of kernels, copies and sets of each device over the steps' time: low below 50 %, medium "
    "up to 20 %. Cost 0: the findings that name what it waits for count the time.",
    "LowGPUUtilization",
    [](const RunFacts& run, Findings* out) {
      constexpr double kLow = 0.5;
      constexpr double kVeryLow = 0.2;
      return EachRank(run, true, [&](const RankFacts& rank) {
        struct Wait {
          std::string_view word, advice;
          Sum ns;
        };
        using trace::StepRole;
        const Wait waits[] = {
            {"waits for data", "Make batches beside the model: see InputPipeline.",
             rank.role(StepRole::kDataLoader)},
            {"launches its work",
             "Larger batches, fused kernels, torch.compile or CUDA graphs: see KernelLaunch.",
             rank.role(StepRole::kRuntime)},
            {"is busy between launches", "Look at the host's operators and Python: see HostBound.",
             rank.role(StepRole::kCpuExec) + rank.role(StepRole::kOther)},
            {"talks to other ranks", "Overlap it with computation: see CommunicationBound.",
             rank.role(StepRole::kCommunication)},
        };
        const Wait& most =
            *std::max_element(std::begin(waits), std::end(waits),
                              [](const Wait& a, const Wait& b) { return a.ns < b.ns; });
        for (const DeviceFacts& device : rank.devices) {
          const double busy = rank.share(device.busy_ns);
          if (busy >= kLow) continue;
          Advised a;
          a.severity = busy <= kVeryLow ? Severity::kMedium : Severity::kLow;
          if (rank.devices.size() > 1) a.about = fmt::format("device {}", device.device);
          a.title =
              fmt::format("Device {} works for only {} of the time", device.device, Percent(busy));
          a.evidence["utilization"] = Rounded(busy);
          a.evidence["busy_seconds"] = Rounded(Seconds(device.busy_ns));
          a.evidence["idle_seconds"] = Rounded(Seconds(rank.wall_ns - device.busy_ns));
          for (std::size_t i = 0; i < rank.role_ns.size(); ++i) {
            a.evidence[std::string(trace::kStepRoleNames[i])] =
                Rounded(rank.share(rank.role_ns[i]));
          }
          a.cause = fmt::format("In {} of the time the device has nothing to do while the host {}.",
                                Percent(rank.share(most.ns)), most.word);
          a.advice = most.advice;
          a.share = 1 - busy;
          out->Add(rank, std::move(a));
        }
      });
    }};

}  // namespace telltale::rules::advice
