// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/launch_stats.h"

#include <algorithm>

#include "analysis/trace/describe.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

std::vector<Launch> LaunchesOf(const Trace& trace, const Scope& scope) {
  std::vector<Launch> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i) || trace.launch[i] == kNoRow) continue;
    const std::uint32_t call = trace.launch[i];
    out.push_back({.call = call,
                   .work = static_cast<std::uint32_t>(i),
                   .call_ns = trace.duration_ns[call],
                   .work_ns = trace.duration_ns[i],
                   .delay_ns = std::max<std::int64_t>(0, trace.begin_ns[i] - trace.end_ns(call))});
  }
  return out;
}

LaunchSummary SummaryOf(const std::vector<Launch>& launches, std::int64_t runtime_cutoff_ns,
                        std::int64_t delay_cutoff_ns) {
  LaunchSummary out;
  out.launches = launches.size();
  for (const Launch& l : launches) {
    if (l.call_ns > runtime_cutoff_ns) {
      ++out.slow_calls;
    } else if (l.work_ns < l.call_ns) {
      ++out.short_kernels;
    }
    if (l.delay_ns > delay_cutoff_ns) ++out.delayed;
  }
  return out;
}

Result<Tables> RunLaunchStats(TraceSource& source, const Options& options) {
  Tables out;
  Table& summary = out.Add("launches", "Launches, by rank",
                           {"rank", "launches", "short_kernels", "slow_calls", "delayed"});
  Table& figures =
      out.Add("figures", "Duration of the call, of the work, and the delay between",
              {"rank", "figure", "mean_ns", "std_ns", "min_ns", "median_ns", "q75_ns", "max_ns"});
  Table* each = nullptr;
  if (options.series) {
    each = &out.Add("each", "Every launch",
                    {"rank", "correlation", "call", "work", "call_ns", "work_ns", "delay_ns"});
    each->shown = options.top;
  }
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const std::vector<Launch> launches = LaunchesOf(trace, scope);
    if (launches.empty()) {
      NoteNoDevice(trace, &out);
      continue;
    }
    const LaunchSummary s = SummaryOf(launches, options.runtime_cutoff_ns, options.delay_cutoff_ns);
    summary.Add(
        {Int(rank), Int(s.launches), Int(s.short_kernels), Int(s.slow_calls), Int(s.delayed)});
    const auto add = [&](std::string_view figure, auto member) {
      std::vector<double> values;
      values.reserve(launches.size());
      for (const Launch& l : launches) values.push_back(static_cast<double>(l.*member));
      const Description d = Describe(std::move(values));
      figures.Add({Int(rank), Text(figure), Real(d.mean), Real(d.std), Real(d.min), Real(d.median),
                   Real(d.q75), Real(d.max)});
    };
    add("call", &Launch::call_ns);
    add("work", &Launch::work_ns);
    add("delay", &Launch::delay_ns);
    if (each == nullptr) continue;
    for (const Launch& l : launches) {
      each->Add({Int(rank), trace.correlation[l.work], Text(trace.NameOf(l.call)),
                 Text(trace.NameOf(l.work)), l.call_ns, l.work_ns, l.delay_ns});
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
