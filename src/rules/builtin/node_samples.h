// SPDX-License-Identifier: Apache-2.0
// What the profiler rules share: the values of one sample of a node put together (cores, storage,
// GPUs), with what the training steps did in that time; percentiles; box plots.
#pragma once
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "analysis/quantiles.h"
#include "format/records.gen.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/rule.h"

namespace telltale::rules {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Of values in any order, `q` from 0 to 1, linear between two of them as numpy's; 0 of none.
inline double PercentileOf(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(std::floor(rank));
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[static_cast<std::size_t>(below)];
  if (static_cast<std::size_t>(below) + 1 == values.size()) return low;
  const double high = *std::min_element(values.begin() + below + 1, values.end());
  return low + (high - low) * (rank - static_cast<double>(below));
}

/// What a box plot shows; whiskers end 1.5 box lengths beyond the box at most.
inline nlohmann::ordered_json BoxOf(const analysis::Quantiles& values) {
  const double p25 = values.At(0.25);
  const double p75 = values.At(0.75);
  const double reach = 1.5 * (p75 - p25);
  nlohmann::ordered_json box;
  box["samples"] = values.count();
  box["min"] = Rounded(values.min());
  box["p05"] = Rounded(values.At(0.05));
  box["p25"] = Rounded(p25);
  box["p50"] = Rounded(values.At(0.5));
  box["p75"] = Rounded(p75);
  box["p95"] = Rounded(values.At(0.95));
  box["max"] = Rounded(values.max());
  box["whisker_low"] = Rounded(std::max(values.min(), p25 - reach));
  box["whisker_high"] = Rounded(std::min(values.max(), p75 + reach));
  return box;
}

/// Of one GPU; kUnknown where it was not sampled.
struct GpuSample {
  double utilization = kUnknown;  ///< Percent of the time.
  double percent = kUnknown;      ///< Of its memory, as the driver says it.
  double used = kUnknown;         ///< Bytes.
  double total = kUnknown;        ///< Bytes.

  /// Percent of its memory.
  double memory() const {
    if (std::isfinite(used) && std::isfinite(total) && total > 0) return 100 * used / total;
    return percent;
  }
};

/// Everything that was sampled of one node at one time; kUnknown what was not.
struct NodeSample {
  std::int64_t from_ns = 0, to_ns = 0;
  double cpu = kUnknown;        ///< Percent of all cores.
  double iowait = kUnknown;     ///< Percent of all cores.
  double pressure = kUnknown;   ///< Percent of the last 10 s in which a task waited for I/O.
  double disk_busy = kUnknown;  ///< Percent, of the busiest disk.
  double read_rate = kUnknown;  ///< Bytes/s that the run fetched from storage.
  double run_cpu = kUnknown;    ///< Of the run's processes, percent of one core.
  std::map<int, GpuSample> gpus;

  // Of the TRAIN steps of the node's ranks in that time.
  double covered = 0;  ///< Share of the time in which there were any; 0: none is known.
  double wait = 0;     ///< Share of their time: data wait.
  double comm = 0;     ///< Share of their time: comm wait.
  double model = 0;    ///< Share of their time: forward, backward and optimizer.
  double step_ns = 0;  ///< Their mean duration.
  std::int64_t first_step = -1, last_step = -1;
  std::uint32_t attempt = 0;

  double seconds() const { return static_cast<double>(to_ns - from_ns) / 1e9; }
  /// The training made steps for at least half of the time.
  bool training() const { return covered >= 0.5; }
};

/// Puts samples together. A sample is given away once a TRAIN step has ended in or after it, as
/// only then it is known what the training did; where none does for kHeld samples, and twice the
/// longest step so far, without.
class NodeSampler {
 public:
  static constexpr std::uint32_t kTables =
      store::MaskOf(format::TableId::kMetrics) | store::MaskOf(format::TableId::kSteps);

  struct Node {
    std::uint32_t writer = 0;
    std::string name;
  };

  /// Whether a series is read; remembers which value it is.
  bool Wants(const Series& series) {
    if (series.table != format::TableId::kMetrics) return false;
    if (series.name == "cpu.idle" && series.collection.starts_with("cpu:")) {
      cores_[series.mode].insert(series.collection);  // Counted; its samples are not needed.
      return false;
    }
    const What what = WhatIs(series);
    if (what.quantity == Quantity::kNone) return false;
    if (what_.size() <= series.id) what_.resize(series.id + 1);
    what_[series.id] = what;
    return true;
  }

  /// Calls `done(const Node&, const NodeSample&)` for each sample that is complete.
  template <class Done>
  void OnRecord(const Record& record, Done&& done) {
    if (const auto* metric = record.As<format::MetricRow>()) {
      if (record.series < what_.size()) OnMetric(*metric, record, done);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, record.writer, done);
    }
  }

  /// No record follows.
  template <class Done>
  void Finish(Done&& done) {
    for (auto& [writer, state] : nodes_) {
      if (state.open) Complete(&state, done);
      Give(&state, done);
    }
  }

  /// Cores of a node; 0: not known.
  int Cores(const std::string& node) const {
    const auto found = cores_.find(node);
    return found == cores_.end() ? 0 : static_cast<int>(found->second.size());
  }

 private:
  /// Values of one sample have one time; those of devices may be read a little later.
  static constexpr std::int64_t kTogetherNs = 20'000'000;
  static constexpr std::size_t kHeld = 120;
  static constexpr std::size_t kMostHeld = 1200;
  static constexpr int kMaxGpus = 1024;

  enum class Quantity : std::uint8_t {
    kNone,
    kCpu,
    kIoWait,
    kPressure,
    kDiskBusy,
    kReadRate,
    kRunCpu,
    kGpuUtilization,
    kGpuPercent,
    kGpuUsed,
    kGpuTotal,
  };
  struct What {
    Quantity quantity = Quantity::kNone;
    int gpu = -1;
  };

  struct Steps {
    double ns = 0, wait_ns = 0, comm_ns = 0, model_ns = 0, count = 0;
    std::int64_t first = -1, last = -1;
    std::set<std::pair<std::int32_t, std::int32_t>> processes;
  };
  struct State {
    Node node;
    bool open = false;
    NodeSample sample;
    std::vector<NodeSample> held;
    SampleTimes times;
    Steps steps;
    std::int64_t longest_ns = 0;  ///< Step of the attempt.
    std::uint32_t attempt = 0;

    bool HeldEnough() const {
      return held.size() >= kMostHeld ||
             (held.size() >= kHeld && held.back().to_ns - held.front().from_ns > 2 * longest_ns);
    }
  };

  static What WhatIs(const Series& series) {
    const std::string_view name = series.name;
    const std::string_view subject = series.collection;
    if (subject == "node") {
      if (name == "cpu.busy") return {Quantity::kCpu, -1};
      if (name == "cpu.iowait") return {Quantity::kIoWait, -1};
      return {};
    }
    if (name == "psi.io.some10") return {Quantity::kPressure, -1};
    if (name == "disk.busy") return {Quantity::kDiskBusy, -1};
    if (name == "proc.read_bytes_rate" && subject == "proc:tree") return {Quantity::kReadRate, -1};
    if (name == "proc.cpu" && subject == "proc:tree") return {Quantity::kRunCpu, -1};
    if (!subject.starts_with("gpu:")) return {};
    int gpu = -1;
    const std::string_view digits = subject.substr(4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), gpu);
    if (error != std::errc() || end != digits.data() + digits.size() || gpu < 0 ||
        gpu >= kMaxGpus) {
      return {};
    }
    if (name == "gpu.utilization") return {Quantity::kGpuUtilization, gpu};
    if (name == "gpu.memory_percent") return {Quantity::kGpuPercent, gpu};
    if (name == "gpu.memory_used") return {Quantity::kGpuUsed, gpu};
    if (name == "gpu.memory_total") return {Quantity::kGpuTotal, gpu};
    return {};
  }

  State* StateOf(std::uint32_t writer) {
    State& state = nodes_[writer];
    state.node.writer = writer;
    return &state;
  }

  template <class Done>
  void OnMetric(const format::MetricRow& row, const Record& record, Done& done) {
    if (!std::isfinite(row.value)) return;
    State* state = StateOf(record.writer);
    if (state->node.name.empty()) state->node.name = row.node;
    if (state->open && row.time_ns < state->sample.to_ns) return;  // It came late.
    if (state->open && row.time_ns > state->sample.to_ns + kTogetherNs) Complete(state, done);
    if (!state->open) {
      state->open = true;
      state->sample = NodeSample();
      state->sample.to_ns = row.time_ns;
    }
    Set(what_[record.series], row.value, &state->sample);
  }

  /// The first value of a sample stands: the last sample of a run may follow at once, and what it
  /// says of rates is over no time at all.
  static void Set(const What& what, double value, NodeSample* sample) {
    const auto once = [value](double* of) {
      if (!std::isfinite(*of)) *of = value;
    };
    switch (what.quantity) {
      case Quantity::kNone:
        break;
      case Quantity::kCpu:
        once(&sample->cpu);
        break;
      case Quantity::kIoWait:
        once(&sample->iowait);
        break;
      case Quantity::kPressure:
        once(&sample->pressure);
        break;
      case Quantity::kDiskBusy:
        sample->disk_busy =
            std::isfinite(sample->disk_busy) ? std::max(sample->disk_busy, value) : value;
        break;
      case Quantity::kReadRate:
        once(&sample->read_rate);
        break;
      case Quantity::kRunCpu:
        once(&sample->run_cpu);
        break;
      case Quantity::kGpuUtilization:
        once(&sample->gpus[what.gpu].utilization);
        break;
      case Quantity::kGpuPercent:
        once(&sample->gpus[what.gpu].percent);
        break;
      case Quantity::kGpuUsed:
        once(&sample->gpus[what.gpu].used);
        break;
      case Quantity::kGpuTotal:
        once(&sample->gpus[what.gpu].total);
        break;
    }
  }

  template <class Done>
  void Complete(State* state, Done& done) {
    state->open = false;
    const auto from = state->times.Since(state->sample.to_ns);
    if (!from) {
      // The first, or one behind a gap: nobody knows of which time it speaks.
      Give(state, done);
      return;
    }
    state->sample.from_ns = *from;
    state->sample.attempt = state->attempt;
    state->held.push_back(std::move(state->sample));
    if (state->steps.ns > 0 || state->HeldEnough()) Give(state, done);
  }

  template <class Done>
  void OnStep(const format::StepRow& row, std::uint32_t writer, Done& done) {
    if (row.duration_ns <= 0) return;
    State* state = StateOf(writer);
    if (row.attempt < state->attempt) return;
    if (row.attempt > state->attempt) {
      Give(state, done);
      state->attempt = row.attempt;
      state->longest_ns = 0;
    }
    state->longest_ns = std::max(state->longest_ns, row.duration_ns);
    Steps& steps = state->steps;
    steps.ns += static_cast<double>(row.duration_ns);
    steps.count += 1;
    const format::StepRow own = WithoutProbe(row);
    steps.wait_ns +=
        static_cast<double>(std::clamp<std::int64_t>(own.data_wait_ns, 0, own.duration_ns));
    steps.comm_ns +=
        static_cast<double>(std::clamp<std::int64_t>(own.comm_wait_ns, 0, own.duration_ns));
    steps.model_ns += static_cast<double>(std::clamp<std::int64_t>(
        own.forward_ns + own.backward_ns + own.optimizer_ns, 0, own.duration_ns));
    if (steps.first < 0 || row.step < steps.first) steps.first = row.step;
    steps.last = std::max(steps.last, row.step);
    const std::pair process(row.rank, row.pid);
    // An emplace of what is there would ask for memory and give it back, at each step.
    if (steps.processes.size() < 256 && !steps.processes.contains(process)) {
      steps.processes.insert(process);
    }
  }

  template <class Done>
  void Give(State* state, Done& done) {
    const Steps steps = std::exchange(state->steps, {});
    const std::vector<NodeSample> held = std::exchange(state->held, {});
    double width = 0;
    for (const NodeSample& s : held) width += static_cast<double>(s.to_ns - s.from_ns);
    const auto ranks = static_cast<double>(std::max<std::size_t>(1, steps.processes.size()));
    for (NodeSample sample : held) {
      if (steps.ns > 0) {
        sample.covered = std::min(1.0, steps.ns / (width * ranks));
        sample.wait = steps.wait_ns / steps.ns;
        sample.comm = steps.comm_ns / steps.ns;
        sample.model = steps.model_ns / steps.ns;
        sample.step_ns = steps.ns / steps.count;
        sample.first_step = steps.first;
        sample.last_step = steps.last;
      }
      done(std::as_const(state->node), std::as_const(sample));
    }
  }

  std::vector<What> what_;                              ///< By series.
  std::map<std::uint32_t, State> nodes_;                ///< By writer.
  std::map<std::string, std::set<std::string>> cores_;  ///< By node.
};

/// "gpu:0 on n1".
inline std::string GpuName(const NodeSampler::Node& node, int gpu) {
  return fmt::format("gpu:{} on {}", gpu, node.name);
}

}  // namespace telltale::rules
