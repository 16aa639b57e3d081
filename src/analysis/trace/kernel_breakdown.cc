// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/kernel_breakdown.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

OverlapTimes OverlapTimesOf(const std::array<Spans, 3>& classes) {
  struct Edge {
    std::int64_t time;
    std::uint8_t toggles;
  };
  std::vector<Edge> edges;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    for (const Span& span : classes[c]) {
      const auto bit = static_cast<std::uint8_t>(1U << c);
      edges.push_back({span.begin, bit});
      edges.push_back({span.end, bit});
    }
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.time < b.time; });
  OverlapTimes out{};
  std::size_t running = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    running ^= edges[i].toggles;
    if (i + 1 < edges.size()) out[running] += edges[i + 1].time - edges[i].time;
  }
  out[0] = 0;
  return out;
}

std::string OverlapName(std::size_t classes) {
  std::string out;
  for (std::size_t c = 0; c < kKernelClassNames.size(); ++c) {
    if ((classes >> c & 1U) == 0) continue;
    if (!out.empty()) out += " overlapping ";
    out += kKernelClassNames[c];
  }
  return out;
}

std::vector<KernelStatistics> KernelStatisticsOf(const Trace& trace, const Scope& scope) {
  const std::vector<KernelClass> classes = ClassesOf(trace);
  std::vector<std::uint32_t> place(trace.names.size(), kNoRow);
  std::vector<KernelStatistics> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i)) continue;
    std::uint32_t& at = place[trace.name[i]];
    if (at == kNoRow) {
      at = static_cast<std::uint32_t>(out.size());
      out.push_back({trace.NameOf(i), classes[i], {}});
    }
    out[at].durations_ns.Add(static_cast<double>(trace.duration_ns[i]));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.durations_ns.sum() > b.durations_ns.sum();
  });
  return out;
}

Result<Tables> RunKernelBreakdown(TraceSource& source, const Options& options) {
  Tables out;
  Table& classes =
      out.Add("classes", "Time by what runs, all ranks", {"classes", "sum_ns", "share"});
  Table& kernels = out.Add("kernels", "Kernels, by rank and time in sum",
                           {"rank", "class", "name", "count", "sum_ns", "share", "mean_ns",
                            "max_ns", "min_ns", "std_ns"});
  kernels.shown = options.top;
  std::array<Sum, std::tuple_size_v<OverlapTimes>> sums{};  // Of all ranks.
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const OverlapTimes times = OverlapTimesOf(ClassTimes(trace, scope));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += times[i];
    const std::vector<KernelStatistics> statistics = KernelStatisticsOf(trace, scope);
    if (statistics.empty()) NoteNoDevice(trace, &out);
    double whole = 0;
    for (const KernelStatistics& one : statistics) whole += one.durations_ns.sum();
    for (const KernelStatistics& one : statistics) {
      const Moments& m = one.durations_ns;
      kernels.Add({Int(rank), Text(kKernelClassNames[static_cast<std::size_t>(one.of)]),
                   Text(one.name), Int(m.count()), Int(SaturatingCast(m.sum())),
                   Share(m.sum(), whole), Real(m.mean()), Int(SaturatingCast(m.max())),
                   Int(SaturatingCast(m.min())), Real(m.std())});
    }
  }
  Sum whole = 0;
  std::vector<std::pair<Sum, std::size_t>> order;
  for (std::size_t i = 1; i < sums.size(); ++i) {
    whole += sums[i];
    if (sums[i] > 0) order.emplace_back(sums[i], i);
  }
  std::sort(order.rbegin(), order.rend());
  for (const auto& [sum, mask] : order) {
    classes.Add({Text(OverlapName(mask)), Int(sum), Share(sum, whole)});
  }
  return out;
}

}  // namespace telltale::analysis::trace
