// SPDX-License-Identifier: Apache-2.0
// A sink that keeps what importers put, and what hostile bytes are tried with; for tests.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "interchange/trace_source.h"

namespace telltale::interchange {

class RecordingSink final : public TraceSink {
 public:
  struct SliceSeen {
    std::string name, category, kind, lane, window, args;
    std::int64_t time_ns = 0, duration_ns = 0, step = 0, pid = 0, tid = 0, stream = 0;
    std::int64_t correlation = 0, external = 0, flow = 0, bytes = 0;
    std::int32_t rank = 0, device = 0;
    double flops = 0;
  };
  struct MetricSeen {
    std::string node, subject, name, unit;
    std::int64_t time_ns = 0;
    double value = 0;
    std::int32_t rank = 0;
  };
  struct StepSeen {
    std::string mode;
    std::int64_t step = 0, time_ns = 0, duration_ns = 0, data_wait_ns = 0, other_ns = 0;
    std::int32_t rank = 0;
  };

  void Slice(const format::SliceRow& row) override {
    const std::lock_guard lock(mutex_);
    slices.push_back({std::string(row.name), std::string(row.category), std::string(row.kind),
                      std::string(row.lane), std::string(row.window), std::string(row.args),
                      row.time_ns, row.duration_ns, row.step, row.pid, row.tid, row.stream,
                      row.correlation, row.external, row.flow, row.bytes, row.rank, row.device,
                      row.flops});
  }
  void Step(const format::StepRow& row) override {
    steps.push_back({std::string(row.mode), row.step, row.time_ns, row.duration_ns,
                     row.data_wait_ns, row.other_ns, row.rank});
  }
  void Span(const format::SpanRow& row) override { static_cast<void>(row); }
  void Scalar(const format::ScalarRow& row) override { static_cast<void>(row); }
  void Event(const format::EventRow& row) override { static_cast<void>(row); }
  void Metric(std::int32_t rank, const format::MetricRow& row) override {
    const std::lock_guard lock(mutex_);
    metrics.push_back({std::string(row.node), std::string(row.subject), std::string(row.name),
                       std::string(row.unit), row.time_ns, row.value, rank});
  }
  void Count(std::string_view name, std::string_view subject, std::uint64_t n, bool loss) override {
    static_cast<void>(subject);
    counters[std::string(name)] += n;
    losses += loss ? n : 0;
  }
  void Note(std::string text) override { notes.push_back(std::move(text)); }

  store::SlicePlace Place(std::int32_t rank, std::uint64_t rows) override {
    static_cast<void>(rank);
    static_cast<void>(rows);
    return {};
  }
  void Put(std::int32_t rank, const store::SlicePlace& place,
           const store::SliceBlock& block) override {
    static_cast<void>(place);
    const std::lock_guard lock(mutex_);
    ++blocks;
    std::int32_t from = 0;
    for (std::size_t i = 0; i < block.rows(); ++i) {
      const store::SliceLane& lane = block.lanes[block.lane[i]];
      const std::int32_t to = block.args_end[i];
      slices.push_back(
          {std::string(block.names[block.name[i]]),
           std::string(block.categories[block.category[i]]),
           std::string(block.kinds[block.kind[i]]), lane.lane,
           std::string(block.windows[block.window[i]]),
           block.args.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)),
           block.time_ns[i], block.duration_ns[i], block.step[i], lane.pid, lane.tid, lane.stream,
           block.correlation[i], block.external[i], block.flow[i], block.bytes[i], rank,
           lane.device, block.flops[i]});
      from = to;
    }
  }
  store::SlicePlace PlaceMetrics(std::int32_t rank, std::uint64_t rows) override {
    return Place(rank, rows);
  }
  void PutMetrics(std::int32_t rank, const store::SlicePlace& place,
                  const store::MetricBlock& block) override {
    static_cast<void>(place);
    const std::lock_guard lock(mutex_);
    ++blocks;
    for (std::size_t i = 0; i < block.rows(); ++i) {
      const store::MetricSeries& series = block.names[block.series[i]];
      metrics.push_back({series.node, series.subject, series.name, series.unit, block.time_ns[i],
                         block.value[i], rank});
    }
  }
  bool ok() const override { return true; }

  /// The slice of that name; one without a name where there is none.
  SliceSeen Named(std::string_view name) const {
    for (const SliceSeen& slice : slices) {
      if (slice.name == name) return slice;
    }
    return {};
  }

  std::vector<SliceSeen> slices;
  std::vector<MetricSeen> metrics;
  std::vector<StepSeen> steps;
  std::map<std::string, std::uint64_t> counters;
  std::uint64_t losses = 0;
  std::size_t blocks = 0;  ///< That were put.
  std::vector<std::string> notes;

 private:
  std::mutex mutex_;  ///< Guards what is put by blocks, and what goes into the same lists.
};

/// Gives `read` the bytes cut at every place (a thousand of them where there are more) and with
/// some flipped, by the same dice each time: it may refuse them, and must come back.
inline void TryDamaged(const std::string& bytes,
                       const std::function<void(std::string_view, TraceSource*)>& read) {
  const auto once = [&](const std::string& damaged) {
    // Of its own size, so that a sanitizer sees a read beyond it.
    const std::vector<char> exact(damaged.begin(), damaged.end());
    RecordingSink sink;
    TraceSource source(&sink, "damaged", 0);
    read(std::string_view(exact.data(), exact.size()), &source);
  };
  const std::size_t stride = bytes.size() / 1000 + 1;
  for (std::size_t size = 0; size < bytes.size(); size += stride) once(bytes.substr(0, size));
  std::mt19937 dice(20240701);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = bytes;
    const int flips = 1 + static_cast<int>(dice() % 4);
    for (int i = 0; i < flips && !damaged.empty(); ++i) {
      damaged[dice() % damaged.size()] = static_cast<char>(dice() % 256);
    }
    once(damaged);
  }
}

}  // namespace telltale::interchange
