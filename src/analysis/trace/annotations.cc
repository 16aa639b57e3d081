// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/annotations.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

std::vector<AnnotationTime> AnnotationTimesOf(const Trace& trace, const Scope& scope) {
  std::map<std::pair<bool, std::uint32_t>, Moments> times;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!scope.Has(i)) continue;
    const bool device = trace.category[i] == Category::kDeviceAnnotation;
    // Steps, data loading and collectives are annotations in some traces and operators in others.
    const bool host =
        trace.category[i] == Category::kAnnotation || trace.KindOf(i) == "user_annotation";
    if (!device && !host) continue;
    times[{device, trace.name[i]}].Add(static_cast<double>(trace.duration_ns[i]));
  }
  std::vector<AnnotationTime> out;
  for (const auto& [key, moments] : times) {
    out.push_back({trace.names[key.second], key.first, moments});
  }
  std::stable_sort(out.begin(), out.end(), [](const AnnotationTime& a, const AnnotationTime& b) {
    if (a.device != b.device) return b.device;
    return a.durations_ns.sum() > b.durations_ns.sum();
  });
  return out;
}

Result<Tables> RunAnnotations(TraceSource& source, const Options& options) {
  Tables out;
  Table& table =
      out.Add("annotations", "Ranges, by time in sum",
              {"rank", "on", "name", "count", "sum_ns", "mean_ns", "max_ns", "min_ns", "std_ns"});
  table.shown = options.top;
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    for (const AnnotationTime& one : AnnotationTimesOf(trace, scope)) {
      const Moments& m = one.durations_ns;
      table.Add({Int(rank), Text(one.device ? "device" : "host"), Text(one.name), Int(m.count()),
                 Int(SaturatingCast(m.sum())), Real(m.mean()), Int(SaturatingCast(m.max())),
                 Int(SaturatingCast(m.min())), Real(m.std())});
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
