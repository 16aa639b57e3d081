// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/overlap.h"

#include <fmt/core.h>

#include "analysis/trace/kernel_class.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

CommunicationOverlap CommunicationOverlapOf(const Trace& trace, const Scope& scope) {
  const auto times = ClassTimes(trace, scope);
  return {.communication_ns = Length(times[1]),
          .computation_ns = Length(times[0]),
          .overlap_ns = Length(Intersection(times[0], times[1]))};
}

Result<Tables> RunOverlap(TraceSource& source, const Options& options) {
  Tables out;
  Table& table = out.Add("overlap", "Communication that computation hides, by rank",
                         {"rank", "communication_ns", "computation_ns", "overlap_ns", "share"});
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const CommunicationOverlap o = CommunicationOverlapOf(trace, scope);
    table.Add({Int(rank), o.communication_ns, o.computation_ns, o.overlap_ns,
               Share(o.overlap_ns, o.communication_ns)});
    if (o.communication_ns == 0) {
      out.notes.push_back(
          fmt::format("rank {}: no kernel of a collective (nccl*Kernel) in the trace", rank));
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
