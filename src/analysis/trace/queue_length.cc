// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/queue_length.h"

#include <algorithm>
#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

std::vector<StreamQueue> QueueLengthOf(const Trace& trace, const Scope& scope) {
  std::vector<bool> launches(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) launches[i] = IsLaunchCall(trace.names[i]);
  std::vector<StreamQueue> out;
  for (const StreamRows& stream : DeviceStreams(trace, scope)) {
    StreamQueue queue{stream.device, stream.stream, {}};
    for (const std::uint32_t row : stream.rows) {
      const std::uint32_t call = trace.launch[row];
      if (call == kNoRow || !launches[trace.name[call]]) continue;
      queue.points.push_back({trace.begin_ns[call], 1, call});
      queue.points.push_back({trace.begin_ns[row], -1, row});
    }
    if (queue.points.empty()) continue;
    std::stable_sort(queue.points.begin(), queue.points.end(),
                     [](const QueuePoint& a, const QueuePoint& b) {
                       if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
                       return a.length > b.length;
                     });
    std::int64_t length = 0;
    for (QueuePoint& point : queue.points) {
      length += point.length;
      point.length = length;
    }
    out.push_back(std::move(queue));
  }
  return out;
}

Description QueueSummary(const StreamQueue& queue) {
  std::vector<double> values;
  values.reserve(queue.points.size());
  for (const QueuePoint& point : queue.points) {
    values.push_back(static_cast<double>(point.length));
  }
  return Describe(std::move(values));
}

std::int64_t TimeFull(const Trace& trace, const StreamQueue& queue, std::int64_t full) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i + 1 < queue.points.size(); ++i) {
    const std::int64_t from = queue.points[i].time_ns;
    const std::int64_t to = queue.points[i + 1].time_ns;
    if (queue.points[i].length < full || trace.RecordingAt(from) != trace.RecordingAt(to)) continue;
    sum += to - from;
  }
  return sum;
}

Result<Tables> RunQueueLength(TraceSource& source, const Options& options) {
  Tables out;
  Table& table = out.Add("queue", "Launches outstanding, by stream",
                         {"rank", "device", "stream", "changes", "mean", "std", "min", "q25",
                          "median", "q75", "max", "full_ns", "full_share"});
  Table* series = nullptr;
  if (options.series) {
    series = &out.Add("series", "The length from each moment on",
                      {"rank", "device", "stream", "time_ns", "length"});
    series->shown = options.top;
  }
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    // Rows are sorted by begin.
    std::int64_t seen_ns = 0;
    std::int64_t before = 0;
    std::size_t recording = trace.recording_count();
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (!scope.Has(i)) continue;
      const std::size_t of = trace.RecordingAt(trace.begin_ns[i]);
      if (of == recording) seen_ns += trace.begin_ns[i] - before;
      recording = of;
      before = trace.begin_ns[i];
    }
    const auto queues = QueueLengthOf(trace, scope);
    if (queues.empty()) NoteNoDevice(trace, &out);
    for (const StreamQueue& queue : queues) {
      const Description d = QueueSummary(queue);
      const std::int64_t full = TimeFull(trace, queue, options.full_queue);
      table.Add({Int(rank), Int(queue.device), Int(queue.stream), Int(d.count), Real(d.mean),
                 Real(d.std), Real(d.min), Real(d.q25), Real(d.median), Real(d.q75), Real(d.max),
                 full, Share(full, seen_ns)});
      if (series == nullptr) continue;
      for (const QueuePoint& point : queue.points) {
        series->Add({Int(rank), Int(queue.device), Int(queue.stream), point.time_ns, point.length});
      }
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
