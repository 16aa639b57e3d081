// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/temporal_breakdown.h"

#include "analysis/trace/kernel_class.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

TemporalBreakdown TemporalBreakdownOf(const Trace& trace, const Scope& scope) {
  TemporalBreakdown out;
  const auto times = ClassTimes(trace, scope);
  Spans all;
  for (const Spans& spans : times) all.insert(all.end(), spans.begin(), spans.end());
  all = Merged(std::move(all));
  for (std::size_t first = 0; first < all.size();) {
    const std::size_t recording = trace.RecordingAt(all[first].begin);
    std::size_t last = first;
    while (last + 1 < all.size() && trace.RecordingAt(all[last + 1].begin) == recording) ++last;
    out.span_ns += all[last].end - all[first].begin;
    first = last + 1;
  }
  out.idle_ns = out.span_ns - Length(all);
  out.compute_ns = Length(times[0]);
  out.non_compute_ns = out.span_ns - out.idle_ns - out.compute_ns;
  return out;
}

Result<Tables> RunTemporalBreakdown(TraceSource& source, const Options& options) {
  Tables out;
  Table& table = out.Add("temporal", "Time of the devices, by rank",
                         {"rank", "span_ns", "idle_ns", "compute_ns", "non_compute_ns",
                          "idle_share", "compute_share", "non_compute_share"});
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const TemporalBreakdown b = TemporalBreakdownOf(trace, scope);
    if (b.span_ns == 0) {
      NoteNoDevice(trace, &out);
      continue;
    }
    table.Add({Int(rank), Int(b.span_ns), Int(b.idle_ns), Int(b.compute_ns), Int(b.non_compute_ns),
               Share(b.idle_ns, b.span_ns), Share(b.compute_ns, b.span_ns),
               Share(b.non_compute_ns, b.span_ns)});
  }
  return out;
}

}  // namespace telltale::analysis::trace
