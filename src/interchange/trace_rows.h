// SPDX-License-Identifier: Apache-2.0
// What exports to trace viewers share: slices lane by lane (query/slice_order.h), then what else a
// run has for a timeline, as it is read: sampled metrics, scalars, events. Numbers of processes and
// threads that differ for each lane, as near to the recorded ones as can be.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "query/slice_order.h"
#include "store/reader.h"

namespace telltale::interchange {

struct TraceExportOptions {
  std::size_t memory_bytes = 96 << 20;
  /// Metrics, scalars and events too.
  bool counters = true;
};

struct TraceExportReport {
  std::uint64_t slices = 0;
  std::uint64_t counters = 0;  ///< Values of metrics and scalars.
  std::uint64_t events = 0;
  store::Salvage salvage;
};

/// A value of a metric or a scalar.
struct CounterValue {
  std::string group;  ///< "metrics of host1", "scalars of rank 0".
  std::string name;   ///< "cpu.user (node)", "loss (TRAIN)".
  std::string_view unit;
  std::int64_t time_ns = 0;
  double value = 0;  ///< Finite.
};

/// Calls one of both with each row there is. The event's texts live during the call.
Status VisitCounters(const std::filesystem::path& run,
                     const std::function<Status(const CounterValue&)>& counter,
                     const std::function<Status(const format::EventRow&)>& event,
                     store::Salvage* salvage);

/// Process and thread of a lane in a viewer.
struct TraceIds {
  std::int64_t pid = 0;
  std::int64_t tid = 0;
};

/// Gives each lane ids of its own: those it has, unless another lane took them.
class TraceIdMap {
 public:
  TraceIds Of(const query::Lane& lane);
  /// Of something that is no lane.
  std::int64_t NewProcess();
  /// The process of a lane is new.
  bool TakeNewProcess(const query::Lane& lane);
  /// What a viewer calls the process of the lane.
  static std::string ProcessName(const query::Lane& lane);
  static std::string ThreadName(const query::Lane& lane);

 private:
  using Process = std::tuple<std::int32_t, std::int32_t, std::int64_t>;
  static Process ProcessOf(const query::Lane& lane);

  std::map<Process, std::int64_t> processes_;
  std::set<std::int64_t> pids_;
  std::set<Process> named_;
  std::set<std::pair<std::int64_t, std::int64_t>> threads_;
  std::int64_t next_ = 1 << 24;
};

}  // namespace telltale::interchange
