// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/registry.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace telltale::analysis::trace {
namespace {

constexpr std::array kAnalyses = {
    // clang-format off: one line each, so that additions do not collide.
    Analysis{"step-breakdown", "Where the wall time of each step goes, by strict priority",
             RunStepBreakdown},
    Analysis{"temporal", "Idle, compute and other time of the devices", RunTemporalBreakdown},
    Analysis{"kernels", "Time by class of kernel and its overlaps; the kernels that take longest",
             RunKernelBreakdown},
    Analysis{"idle", "Why streams stand idle: host wait, kernel wait, other", RunIdleBreakdown},
    Analysis{"overlap", "Share of communication that computation hides", RunOverlap},
    Analysis{"communication", "Share of step time that each rank spends in communication",
             RunCommunication, false},
    Analysis{"launches", "Launches: duration of the call, delay, short kernels, outliers",
             RunLaunchStats},
    Analysis{"queue", "Launches outstanding on each stream, and time with the queue full",
             RunQueueLength},
    Analysis{"memory-bandwidth", "Bandwidth of copies and sets by kind", RunMemoryBandwidth},
    Analysis{"sequences", "Frequent sequences of kernels below operators of a name (--name)",
             RunKernelSequences},
    Analysis{"op-kernels", "Operators, the kernels that they launch, and the delays", RunOpKernels},
    Analysis{"annotations", "Time in ranges of the user's and the framework's, on host and device",
             RunAnnotations},
    Analysis{"diff", "Operators added, deleted, more and fewer in another run (--against)",
             RunTraceDiff},
    Analysis{"critical-path",
             "What bounds a step, and how long one would take if something cost less",
             RunCriticalPath},
    Analysis{"stragglers", "Ranks that others wait for", RunStragglers},
    Analysis{"gpu", "Utilisation, SM efficiency, occupancy, tensor cores", RunGpuMetrics},
    Analysis{"roofline", "Floating-point rate of operators against the device's peak (MFU)",
             RunRoofline},
    // clang-format on
};

}  // namespace

std::span<const Analysis> Analyses() { return kAnalyses; }

const Analysis* FindAnalysis(std::string_view name) {
  const auto found = std::find_if(kAnalyses.begin(), kAnalyses.end(),
                                  [&](const Analysis& one) { return one.name == name; });
  return found == kAnalyses.end() ? nullptr : &*found;
}

Result<TraceSource> TraceSource::Open(const std::filesystem::path& run,
                                      const std::vector<std::int32_t>& ranks, bool trace) {
  TraceSource source;
  source.run_ = run;
  std::uint64_t left_out = 0;
  auto found = FindRanks(run, ranks, &left_out);
  // Of some ranks that are asked for nothing is left out.
  if (left_out > 0 && ranks.empty()) {
    source.notes_.push_back(fmt::format(
        "{} ranks of the trace are left out: at most {} are looked at, {} of one writer. --rank "
        "names others.",
        left_out, kMostRanks, kMostRanksOfWriter));
  }
  if (found.ok()) {
    source.writers_ = std::move(*found);
  } else if (trace || found.status().code() != Code::kUnusable) {
    return found.status();
  }
  if (!ranks.empty()) {
    source.ranks_ = ranks;
  } else {
    for (const auto& [rank, folders] : source.writers_) source.ranks_.push_back(rank);
  }
  return source;
}

Result<Trace> TraceSource::Load(std::int32_t rank, Needs needs) {
  return LoadTrace(run_, writers_, rank, needs, &salvage_);
}

}  // namespace telltale::analysis::trace
