// SPDX-License-Identifier: Apache-2.0
// Time in which the device waits for its work to be launched.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kKernelLaunch{
    "KernelLaunch",
    "How much time do launches take that the device waits for?",
    "XProf input analyser: kernel launch; HolisticTraceAnalysis: launch statistics",
    "runtime of the step breakdown (calls of the device's API while the device idles) over the "
    "steps' time: low from 3 %, medium from 15 %, high from 20 %. Cost = that time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.03;
      constexpr double kMuch = 0.15;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const Sum ns = rank.role(trace::StepRole::kRuntime);
        const double share = rank.share(ns);
        if (share < kSome) return;
        const auto launches = static_cast<std::int64_t>(rank.launches.launches);
        const bool tf_data =
            std::any_of(rank.names.begin(), rank.names.end(),
                        [](const NameTotal& name) { return name.name.starts_with("Iterator::"); });
        const NameTotal* longest = nullptr;
        for (const NameTotal& name : rank.names) {
          if (name.on_device || name.category != trace::Category::kRuntime) continue;
          if (longest == nullptr || name.self_ns > longest->self_ns) longest = &name;
        }
        // Memory that is taken, libraries that are loaded, waits: no launch would be faster.
        const bool launches_most =
            longest == nullptr || HasAny(longest->name, {"Launch", "Memcpy", "Memset"});
        Advised a;
        a.severity = SeverityOf(share, kMuch);
        a.title = launches_most ? "The device waits for launches"
                                : "The device waits for calls of its own API";
        if (longest != nullptr) {
          a.evidence["longest_call"] = longest->name;
          a.evidence["longest_call_seconds"] = Rounded(Seconds(longest->self_ns));
        }
        a.evidence["launch_seconds"] = Rounded(Seconds(ns));
        a.evidence["launches"] = launches;
        a.evidence["short_kernels"] = rank.launches.short_kernels;
        a.evidence["slow_calls"] = rank.launches.slow_calls;
        if (launches > 0) {
          a.evidence["mean_call_us"] = Rounded(static_cast<double>(rank.launch_call_ns) /
                                               static_cast<double>(launches) / 1e3);
          a.evidence["mean_work_us"] =
              Rounded(static_cast<double>(rank.launched_ns) / static_cast<double>(launches) / 1e3);
        }
        a.cause = fmt::format(
            "In {} of the time the device idles while the host calls its API; {} of {} pieces of "
            "work are shorter than their launch.",
            Percent(share), rank.launches.short_kernels, launches);
        if (longest != nullptr && !launches_most) {
          a.cause += fmt::format(" Longest: {}, {} in sum.", longest->name.substr(0, 100),
                                 TimeWords(longest->self_ns));
        }
        a.advice = launches_most
                       ? "Fewer and larger kernels: torch.compile or CUDA graphs, fused optimizers "
                         "(fused=True), larger batches."
                       : "Look at that call first: memory is taken and libraries are loaded in the "
                         "first steps (let some pass before the profiler starts), waits belong "
                         "behind the step.";
        if (tf_data) {
          a.advice +=
              " Threads of tf.data may take the cores from those that launch: "
              "TF_GPU_THREAD_MODE=gpu_private.";
        }
        a.cost_seconds = Seconds(ns);
        a.share = share;
        a.assumption = "assumes that launches could run ahead of the device";
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
