// SPDX-License-Identifier: Apache-2.0
#include "interchange/trace_rows.h"

#include <fmt/core.h>

#include <cmath>

namespace telltale::interchange {

Status VisitCounters(const std::filesystem::path& run,
                     const std::function<Status(const CounterValue&)>& counter,
                     const std::function<Status(const format::EventRow&)>& event,
                     store::Salvage* salvage) {
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  const std::uint32_t tables = store::MaskOf(format::TableId::kMetrics) |
                               store::MaskOf(format::TableId::kScalars) |
                               store::MaskOf(format::TableId::kEvents);
  Status failed;
  const auto take = [&](const std::string&, const format::Rows& rows) {
    for (const format::MetricRow& row : rows.metrics) {
      if (!failed.ok()) break;
      if (!std::isfinite(row.value)) continue;
      failed = counter({fmt::format("metrics of {}", row.node),
                        fmt::format("{} ({})", row.name, row.subject), row.unit, row.time_ns,
                        row.value});
    }
    for (const format::ScalarRow& row : rows.scalars) {
      if (!failed.ok()) break;
      if (!std::isfinite(row.value)) continue;
      failed = counter({fmt::format("scalars of rank {}", row.rank),
                        fmt::format("{} ({})", row.name, row.mode),
                        {},
                        row.time_ns,
                        row.value});
    }
    for (const format::EventRow& row : rows.events) {
      if (!failed.ok()) break;
      failed = event(row);
    }
    return failed.ok();
  };
  TELLTALE_RETURN_IF_ERROR(reader->Scan(tables, take, salvage));
  return failed;
}

TraceIdMap::Process TraceIdMap::ProcessOf(const query::Lane& lane) {
  return {lane.rank, lane.host() ? -1 : lane.device, lane.host() ? lane.pid : 0};
}

TraceIds TraceIdMap::Of(const query::Lane& lane) {
  auto [at, made] = processes_.try_emplace(ProcessOf(lane));
  if (made) {
    at->second = lane.host() ? lane.pid : lane.device;
    if (!pids_.insert(at->second).second) at->second = NewProcess();
  }
  TraceIds ids{at->second, lane.host() ? lane.tid : lane.stream};
  if (!threads_.insert({ids.pid, ids.tid}).second) {
    ids.tid = next_++;
    threads_.insert({ids.pid, ids.tid});
  }
  return ids;
}

std::int64_t TraceIdMap::NewProcess() {
  while (!pids_.insert(next_).second) ++next_;
  return next_++;
}

bool TraceIdMap::TakeNewProcess(const query::Lane& lane) {
  return named_.insert(ProcessOf(lane)).second;
}

std::string TraceIdMap::ProcessName(const query::Lane& lane) {
  if (lane.host()) return fmt::format("rank {}: process {}", lane.rank, lane.pid);
  return fmt::format("rank {}: device {}", lane.rank, lane.device);
}

std::string TraceIdMap::ThreadName(const query::Lane& lane) {
  if (!lane.name.empty()) return std::string(lane.name);
  return lane.host() ? fmt::format("thread {}", lane.tid) : fmt::format("stream {}", lane.stream);
}

}  // namespace telltale::interchange
