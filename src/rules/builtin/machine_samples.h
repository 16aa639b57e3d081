// SPDX-License-Identifier: Apache-2.0
// What the rules about machines share: the values of one sample of a node put together with the
// TRAIN steps that ended in its time, windows of such samples, sizes and times as people read them.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/rule.h"
#include "rules/series.h"
#include "store/reader.h"

namespace telltale::rules {

/// A value that was not sampled.
inline constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// The number in "gpu:3" behind the prefix "gpu:"; -1 where it is something else.
inline int UnitOf(std::string_view subject, std::string_view prefix) {
  if (!subject.starts_with(prefix)) return -1;
  const std::string_view digits = subject.substr(prefix.size());
  int unit = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit);
  return error == std::errc() && end == digits.data() + digits.size() && unit >= 0 ? unit : -1;
}

/// "1.25 GiB".
inline std::string Bytes(double bytes) {
  constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = bytes;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} bytes", value)
                   : fmt::format("{} {}", Plain(value), kUnits[unit]);
}

/// "40 s", "12 min", "3.2 h".
inline std::string Lasting(double seconds) {
  if (!std::isfinite(seconds)) return "—";
  if (seconds < 99.5) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5970) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

/// TRAIN steps of all ranks of a node, by the time at which they ended.
struct StepSums {
  double ns = 0, wait_ns = 0, comm_ns = 0;
  double count = 0;
  double samples = 0;  ///< Of the batches; those whose size is not known are not among them.
  std::int64_t first = -1, last = -1;

  void Add(const format::StepRow& row) {
    ns += static_cast<double>(row.duration_ns);
    const format::StepRow own = WithoutProbe(row);
    wait_ns += static_cast<double>(std::clamp<std::int64_t>(own.data_wait_ns, 0, own.duration_ns));
    comm_ns += static_cast<double>(std::clamp<std::int64_t>(own.comm_wait_ns, 0, own.duration_ns));
    count += 1;
    samples += static_cast<double>(std::max<std::int64_t>(0, row.batch_size));
    Span(row.step, row.step);
  }
  void Add(const StepSums& other) {
    ns += other.ns;
    wait_ns += other.wait_ns;
    comm_ns += other.comm_ns;
    count += other.count;
    samples += other.samples;
    if (other.first >= 0) Span(other.first, other.last);
  }
  /// Share of the steps' time; 0 where there was none.
  double wait() const { return ns > 0 ? wait_ns / ns : 0; }
  double comm() const { return ns > 0 ? comm_ns / ns : 0; }
  /// At least one rank made steps for half of this time.
  bool FillHalfOf(double seconds) const { return ns >= seconds * 5e8; }

 private:
  void Span(std::int64_t from, std::int64_t to) {
    if (first < 0 || from < first) first = from;
    last = std::max(last, to);
  }
};

/// A value of a sample: which of a rule's own quantities it is, and of what (a GPU, a pid).
struct SampleValue {
  int what = 0;
  std::int32_t unit = 0;
  double value = 0;
  std::uint32_t series = kNoSeries;  ///< Of it there is one value in a sample.
};

struct Sample {
  std::int64_t from_ns = 0, to_ns = 0;
  std::uint32_t attempt = 0;   ///< That made the newest step.
  std::int64_t trains_ns = 0;  ///< Since when that attempt makes TRAIN steps; 0: not yet.
  std::vector<SampleValue> values;
  StepSums steps;  ///< That ended since the sample before.

  double seconds() const { return static_cast<double>(to_ns - from_ns) / 1e9; }
  /// Over all units; kNothing where none was sampled.
  double SumOf(int what) const {
    double sum = kNothing;
    for (const SampleValue& v : values) {
      if (v.what == what) sum = std::isnan(sum) ? v.value : sum + v.value;
    }
    return sum;
  }
  /// Over these units; kNothing where none of them was sampled.
  double MeanOf(int what, const std::set<std::int32_t>& units) const {
    double sum = 0;
    double count = 0;
    for (const SampleValue& v : values) {
      if (v.what != what || !units.contains(v.unit)) continue;
      sum += v.value;
      ++count;
    }
    return count > 0 ? sum / count : kNothing;
  }
  double MaxOf(int what) const {
    double most = kNothing;
    for (const SampleValue& v : values) {
      if (v.what == what && !(v.value <= most)) most = v.value;
    }
    return most;
  }
  /// Of one unit.
  double Of(int what, std::int32_t unit) const {
    for (const SampleValue& v : values) {
      if (v.what == what && v.unit == unit) return v.value;
    }
    return kNothing;
  }
};

/// A node: pids are those of one, whose agent writes all of its records.
struct SampledNode {
  std::uint32_t writer = 0;
  std::string name;
  std::set<std::int32_t> workers;                 ///< Of data loaders, those that live.
  std::map<std::int32_t, std::int32_t> trainers;  ///< Rank by pid: those that made steps and live.
  /// That were ever busy: others of the machine say nothing of the training. Known to rules that
  /// read gpu.utilization.
  std::set<std::int32_t> used_gpus;
};

/// Puts the values of a sample together. Steps count where they end: a window of several samples
/// says what the training did in its time but for the step that its edges cut.
class MachineSampler {
 public:
  static constexpr std::uint32_t kTables = store::MaskOf(format::TableId::kMetrics) |
                                           store::MaskOf(format::TableId::kSteps) |
                                           store::MaskOf(format::TableId::kEvents);

  /// The series is read, as this quantity (from 1) of this unit.
  void Read(const Series& series, int what, std::int32_t unit = 0) {
    if (slots_.size() <= series.id) slots_.resize(series.id + 1);
    slots_[series.id] = {what, unit, series.name == "gpu.utilization"};
  }

  /// Calls `done(const SampledNode&, const Sample&)` for each sample whose values are all there.
  template <class Done>
  void OnRecord(const Record& record, Done&& done) {
    if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric, record, done);
    } else if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, record.writer);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, record.writer);
    }
  }

  /// No record follows.
  template <class Done>
  void Finish(Done&& done) {
    for (auto& [writer, state] : nodes_) {
      if (state.open) Complete(&state, done);
    }
  }

  std::size_t nodes() const { return nodes_.size(); }
  /// A TRAIN step of any node was seen.
  bool stepped() const { return stepped_; }

 private:
  /// Values of one sample have one time; those of devices may be read a little later.
  static constexpr std::int64_t kTogetherNs = 20'000'000;

  struct Slot {
    int what = 0;
    std::int32_t unit = 0;
    bool gpu_load = false;
  };
  struct State {
    SampledNode node;
    bool open = false;
    Sample sample;
    SampleTimes times;
    StepSums steps;
    std::uint32_t attempt = 0;
    std::int64_t trains_ns = 0;  ///< When the first TRAIN step of the attempt began.
  };

  State& StateOf(std::uint32_t writer) {
    State& state = nodes_[writer];
    state.node.writer = writer;
    return state;
  }

  template <class Done>
  void OnMetric(const format::MetricRow& row, const Record& record, Done& done) {
    if (record.series >= slots_.size() || !std::isfinite(row.value)) return;
    const Slot slot = slots_[record.series];
    if (slot.what == 0) return;
    State& state = StateOf(record.writer);
    if (state.node.name.empty()) state.node.name = row.node;
    if (state.open && row.time_ns < state.sample.to_ns) return;  // It came late.
    if (state.open && row.time_ns > state.sample.to_ns + kTogetherNs) Complete(&state, done);
    if (!state.open) {
      state.open = true;
      state.sample.to_ns = row.time_ns;
      state.sample.values.clear();
    }
    if (row.time_ns != state.sample.to_ns && Has(state.sample, record.series)) {
      return;  // The last sample of a run may follow at once: it says nothing more of this time.
    }
    state.sample.values.push_back({slot.what, slot.unit, row.value, record.series});
    if (slot.gpu_load && row.value > 0) state.node.used_gpus.insert(slot.unit);
  }

  static bool Has(const Sample& sample, std::uint32_t series) {
    return std::any_of(sample.values.begin(), sample.values.end(),
                       [&](const SampleValue& value) { return value.series == series; });
  }

  template <class Done>
  static void Complete(State* state, Done& done) {
    state->open = false;
    const auto from = state->times.Since(state->sample.to_ns);
    state->sample.steps = std::exchange(state->steps, {});
    // The first one, and one behind a gap: nobody knows of which time it speaks.
    if (!from) return;
    state->sample.from_ns = *from;
    state->sample.attempt = state->attempt;
    state->sample.trains_ns = state->trains_ns;
    done(std::as_const(state->node), std::as_const(state->sample));
  }

  void OnStep(const format::StepRow& row, std::uint32_t writer) {
    if (row.mode != "TRAIN" || row.duration_ns <= 0) return;
    State& state = StateOf(writer);
    if (row.attempt < state.attempt) return;
    if (row.attempt > state.attempt) {
      state.attempt = row.attempt;
      state.steps = {};
      state.node.trainers.clear();
      state.trains_ns = 0;
    }
    stepped_ = true;
    if (state.trains_ns == 0) state.trains_ns = row.time_ns;
    state.steps.Add(row);
    state.node.trainers[row.pid] = row.rank;
  }

  void OnEvent(const format::EventRow& event, std::uint32_t writer) {
    if (event.kind == "run.attempt_start") {
      // Where the machine died nobody has said that its processes ended.
      StateOf(writer).node.workers.clear();
      StateOf(writer).node.trainers.clear();
      StateOf(writer).trains_ns = 0;
    } else if (event.kind == "worker.start") {
      StateOf(writer).node.workers.insert(event.pid);
    } else if (event.kind == "process.exit") {
      // Who has its pid next is another.
      StateOf(writer).node.workers.erase(event.pid);
      StateOf(writer).node.trainers.erase(event.pid);
    }
  }

  std::vector<Slot> slots_;               ///< By series.
  std::map<std::uint32_t, State> nodes_;  ///< By writer.
  bool stepped_ = false;
};

/// What every cell of a window has; a rule's own derives from it and adds sums weighted by time.
struct CellBase {
  std::int64_t from_ns = 0, to_ns = 0;
  double seconds = 0;
  std::uint32_t attempt = 0;
  StepSums steps;

  CellBase() = default;
  explicit CellBase(const Sample& sample)
      : from_ns(sample.from_ns),
        to_ns(sample.to_ns),
        seconds(sample.seconds()),
        attempt(sample.attempt),
        steps(sample.steps) {}
  void AddBase(const CellBase& other) {
    if (seconds <= 0) from_ns = other.from_ns;
    to_ns = other.to_ns;
    seconds += other.seconds;
    attempt = other.attempt;
    steps.Add(other.steps);
  }
  bool training() const { return steps.FillHalfOf(seconds); }
};

/// The newest time of a machine in cells of about `cell_s` seconds. A gap and a new attempt empty
/// it: what nobody saw, and what was before a restart, says nothing about now.
/// `Cell`: derives from CellBase, `void Add(const Cell&)`.
template <class Cell>
class CellWindow {
 public:
  CellWindow(double cell_s, double window_s) : cell_s_(cell_s), window_s_(window_s) {}

  /// True where a cell became complete: the time to judge.
  bool Push(const Cell& sample) {
    if (building_.seconds > 0 || !cells_.empty()) {
      const bool gap = sample.from_ns > last_ns_ + 1'000'000;
      if (gap || (sample.attempt != attempt_ && attempt_ != 0)) Clear();
    }
    last_ns_ = sample.to_ns;
    attempt_ = sample.attempt;
    building_.Add(sample);
    if (building_.seconds < cell_s_ * 0.999) return false;
    cells_.push_back(std::exchange(building_, Cell()));
    total_ = Cell();
    double seconds = 0;
    for (const Cell& cell : cells_) seconds += cell.seconds;
    while (cells_.size() > 1 && seconds - cells_.front().seconds >= window_s_ * 0.999) {
      seconds -= cells_.front().seconds;
      cells_.pop_front();
    }
    for (const Cell& cell : cells_) total_.Add(cell);
    return true;
  }
  /// It spans the whole time of the window.
  bool full() const { return total_.seconds >= window_s_ * 0.999; }
  const Cell& total() const { return total_; }
  const std::deque<Cell>& cells() const { return cells_; }
  /// REQUIRES: Push has returned true.
  const Cell& newest() const { return cells_.back(); }
  void Clear() {
    cells_.clear();
    building_ = Cell();
    total_ = Cell();
  }

 private:
  double cell_s_;
  double window_s_;
  std::int64_t last_ns_ = 0;
  std::uint32_t attempt_ = 0;
  Cell building_;
  std::deque<Cell> cells_;
  Cell total_;
};

/// A mean over time of a value that not every sample has.
struct TimeMean {
  double sum = 0, seconds = 0;

  void Add(double value, double of_seconds) {
    if (std::isnan(value)) return;
    sum += value * of_seconds;
    seconds += of_seconds;
  }
  void Add(const TimeMean& other) {
    sum += other.sum;
    seconds += other.seconds;
  }
  bool known() const { return seconds > 0; }
  double value() const { return seconds > 0 ? sum / seconds : kNothing; }
};

/// An incident of something that is watched, and whether it is open.
struct Watched {
  bool open = false;
  std::uint32_t attempt = 0;  ///< In which it is; 0: no step was made yet.
  Incident incident;

  void Open(std::string subject, const CellBase& from, Severity severity) {
    open = true;
    attempt = from.attempt;
    incident = Incident();
    incident.subject = std::move(subject);
    incident.first_step = from.steps.first;
    incident.start_ns = from.from_ns;
    incident.severity = severity;
    Extend(from);
  }
  /// It lasts to the end of this time.
  void Extend(const CellBase& to) {
    attempt = std::max(attempt, to.attempt);
    incident.last_step = std::max(incident.last_step, to.steps.last);
    if (incident.first_step < 0) incident.first_step = to.steps.first;
    incident.end_ns = std::max(incident.end_ns, to.to_ns);
  }
  /// What was before a restart says nothing about now: closed where `now` is of a later attempt.
  void CloseBefore(const CellBase& now, Reporter* reporter) {
    if (!open || attempt == 0 || now.attempt <= attempt) return;
    open = false;
    reporter->Close(incident);
  }
  void Raise(Severity severity) { incident.severity = std::max(incident.severity, severity); }
};

}  // namespace telltale::rules
