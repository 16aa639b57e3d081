// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/idle_breakdown.h"

#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

std::vector<StreamIdle> IdleBreakdownOf(const Trace& trace, const Scope& scope,
                                        std::int64_t kernel_gap_ns) {
  std::vector<StreamIdle> out;
  for (const StreamRows& stream : DeviceStreams(trace, scope)) {
    StreamIdle& idle = out.emplace_back();
    idle.device = stream.device;
    idle.stream = stream.stream;
    std::array<std::vector<double>, 3> gaps;
    for (std::size_t i = 1; i < stream.rows.size(); ++i) {
      const std::uint32_t row = stream.rows[i];
      const std::uint32_t before = stream.rows[i - 1];
      // Between two recordings nobody has looked.
      if (trace.RecordingAt(trace.begin_ns[row]) != trace.RecordingAt(trace.begin_ns[before])) {
        continue;
      }
      const std::int64_t last_end = trace.end_ns(before);
      const std::int64_t gap = trace.begin_ns[row] - last_end;
      const std::uint32_t launch = trace.launch[row];
      IdleCause cause = IdleCause::kOther;
      if (launch != kNoRow && trace.begin_ns[launch] > last_end) {
        cause = IdleCause::kHostWait;
      } else if (gap < kernel_gap_ns) {
        cause = IdleCause::kKernelWait;
      }
      const auto at = static_cast<std::size_t>(cause);
      idle.sum_ns[at] += gap;
      gaps[at].push_back(static_cast<double>(gap));
    }
    for (std::size_t c = 0; c < gaps.size(); ++c) idle.gaps[c] = Describe(std::move(gaps[c]));
  }
  return out;
}

Result<Tables> RunIdleBreakdown(TraceSource& source, const Options& options) {
  Tables out;
  Table& table = out.Add("idle", "Idle time of the streams, by cause",
                         {"rank", "device", "stream", "cause", "sum_ns", "share", "gaps", "mean_ns",
                          "median_ns", "max_ns"});
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const auto streams = IdleBreakdownOf(trace, scope, options.idle_gap_ns);
    if (streams.empty()) NoteNoDevice(trace, &out);
    for (const StreamIdle& idle : streams) {
      const Sum whole = idle.sum_ns[0] + idle.sum_ns[1] + idle.sum_ns[2];
      for (std::size_t c = 0; c < kIdleCauseNames.size(); ++c) {
        const Description& gaps = idle.gaps[c];
        if (gaps.count == 0) continue;
        table.Add({Int(rank), Int(idle.device), Int(idle.stream), Text(kIdleCauseNames[c]),
                   Int(idle.sum_ns[c]), Share(idle.sum_ns[c], whole), Int(gaps.count),
                   Real(gaps.mean), Real(gaps.median), Real(gaps.max)});
      }
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
