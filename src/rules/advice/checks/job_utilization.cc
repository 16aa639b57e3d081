// SPDX-License-Identifier: Apache-2.0
// Cores and memory of the nodes, by their samples.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kJobUtilization{
    "JobUtilization",
    "Are a node's cores or its memory full?",
    "tfprof JobChecker: CPU and memory of the job",
    "Mean of 1 − cpu.idle of the node's cores, and the most of 1 − mem.available / mem.total: "
    "medium above 90 %. Needs samples of the machine; a profiler's trace alone has none. Cost 0: "
    "CPUBottleneck and MemoryForecast judge it over time.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kFull = 0.9;
      if (run.jobs.empty()) return RuleStatus::kNoData;
      for (const JobFacts& job : run.jobs) {
        const bool cores = job.cpu_share > kFull;
        const bool memory = job.memory_share > kFull;
        if (!cores && !memory) continue;
        Advised a;
        a.severity = Severity::kMedium;
        a.title = cores ? "The node's cores are full" : "The node's memory is full";
        a.evidence["cores"] = Rounded(job.cpu_share);
        if (std::isfinite(job.memory_share)) a.evidence["memory"] = Rounded(job.memory_share);
        a.evidence["samples"] = job.samples;
        a.cause =
            fmt::format("The cores work in {} of the time{}.", Percent(job.cpu_share),
                        std::isfinite(job.memory_share)
                            ? ", at most " + Percent(job.memory_share) + " of memory is in use"
                            : "");
        a.advice = cores ? "Fewer loader workers than cores, cheaper preprocessing, or a larger "
                           "machine."
                         : "Fewer workers or shorter prefetch queues; data sets in arrays, not in "
                           "lists of objects.";
        out->Add(job.node.empty() ? "node" : "node " + job.node, std::move(a));
      }
      return RuleStatus::kNoIssuesFound;
    }};

}  // namespace telltale::rules::advice
