// SPDX-License-Identifier: Apache-2.0
// What the rules that follow a training loss share: the losses of one name in one process, in
// order, with the time and the learning rate of their step.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/rule.h"

namespace telltale::rules {

/// Median and scaled median absolute deviation.
struct Level {
  double median = 0;
  double sigma = 0;
};
inline Level LevelOf(std::vector<double> values) {
  Level level;
  level.median = MedianOf(values);
  for (double& v : values) v = std::abs(v - level.median);
  level.sigma = 1.4826 * MedianOf(std::move(values));
  return level;
}

inline Level LevelOf(const SortedValues& values) {
  const double median = values.Median();
  return {median, 1.4826 * values.MedianDistance(median)};
}

/// A TRAIN step in which there was a loss.
struct LossPoint {
  std::int64_t step = -1;
  std::int64_t time_ns = 0;
  double value = 0;  ///< Of several of one name (micro-steps): their mean.
  double lr = std::numeric_limits<double>::quiet_NaN();
  double worked_s = 0;  ///< Time of the steps before it, less their waits for data.
  bool alone = true;    ///< The process has no other loss (a GAN has).
};

/// Groups the losses of a step. `Trace` is what a rule keeps of one loss; it derives from
/// TrainingProcess, since it is one incident at a time.
template <class Trace>
class LossTraces {
 public:
  static bool Wants(const Series& series) {
    if (series.table != format::TableId::kScalars || series.mode != "TRAIN") return false;
    return series.name == "loss" || IsFurtherLoss(series.name) || series.name == "lr" ||
           series.name == "learning_rate";
  }
  static bool IsRate(std::string_view name) { return name == "lr" || name == "learning_rate"; }

  /// `point(trace, LossPoint)` is called with each step's loss once it is complete; `close(trace)`
  /// where the process is another's now.
  template <class Point, class Close>
  void OnScalar(const format::ScalarRow& row, std::uint32_t writer, Point&& point, Close&& close) {
    Of* of = Find(row, writer, close);
    if (of == nullptr) return;
    if (IsRate(row.name)) {
      of->lr = row.value;
      return;
    }
    auto found = of->traces.find(row.name);
    if (found == of->traces.end()) {
      if (of->traces.size() >= kMaxTraces) return;
      found = of->traces.emplace(std::string(row.name), Waiting()).first;
      found->second.trace.rank = row.rank;
      found->second.trace.pid = row.pid;
      found->second.trace.attempt = row.attempt;
      found->second.name = row.name;
    }
    Waiting& waiting = found->second;
    if (row.step < waiting.point.step || row.step <= waiting.done) return;
    if (row.step > waiting.point.step) {
      Complete(of, &waiting, point);
      waiting.point = {row.step, row.time_ns, 0, of->lr, of->worked_s, true};
    }
    waiting.point.value += row.value;
    ++waiting.count;
  }

  template <class Point, class Close>
  void OnStep(const format::StepRow& row, std::uint32_t writer, Point&& point, Close&& close) {
    if (row.mode != "TRAIN" || row.duration_ns <= 0) return;
    Of* of = Find(row, writer, close);
    if (of == nullptr || !of->BeginStep(row.step)) return;
    for (auto& [name, waiting] : of->traces) {
      if (waiting.point.step <= row.step) Complete(of, &waiting, point);
    }
    const std::int64_t waited = std::clamp<std::int64_t>(row.data_wait_ns, 0, row.duration_ns);
    of->worked_s += static_cast<double>(row.duration_ns - waited) / 1e9;
  }

  /// On process.exit.
  template <class Point, class Close>
  void End(const format::EventRow& exit, std::uint32_t writer, Point&& point, Close&& close) {
    processes_.End(exit, writer, [&](Of* of) { EndOne(of, point, close); });
  }
  template <class Point, class Close>
  void EndAll(Point&& point, Close&& close) {
    for (auto& [key, of] : processes_) EndOne(&of, point, close);
  }

  /// Begins the incident of a trace; its subject names the loss where it is a further one.
  void Open(Trace* trace, std::int64_t first_step, std::int64_t start_ns) {
    for (auto& [key, of] : processes_) {
      for (auto& [name, waiting] : of.traces) {
        if (&waiting.trace != trace) continue;
        processes_.Open(&of, first_step, start_ns);
        trace->incident = of.incident;
        of.open = false;
        trace->open = true;
        if (name != "loss") trace->incident.subject += ", " + name;
      }
    }
  }
  /// Work of the process of a trace so far.
  double WorkedOf(const Trace* trace) {
    for (auto& [key, of] : processes_) {
      for (auto& [name, waiting] : of.traces) {
        if (&waiting.trace == trace) return of.worked_s;
      }
    }
    return 0;
  }

 private:
  static constexpr std::size_t kMaxTraces = 16;

  struct Waiting {
    std::string name;
    Trace trace;
    LossPoint point;
    std::int64_t count = 0;  ///< Losses of the step that comes in.
    std::int64_t done = -1;  ///< Step that was told.
  };
  struct Of : TrainingProcess {
    std::map<std::string, Waiting, std::less<>> traces;
    double lr = std::numeric_limits<double>::quiet_NaN();
    double worked_s = 0;
  };

  template <class Row, class Close>
  Of* Find(const Row& row, std::uint32_t writer, Close&& close) {
    if (Of* const same = processes_.FindSame(row)) return same;
    // ProcessTable closes what is open, which the traces are: the process is marked for it.
    for (auto& [key, of] : processes_) of.open = AnyOpen(of);
    Of* found = processes_.Find(row, writer, [&](Of* former) {
      for (auto& [name, waiting] : former->traces) {
        if (waiting.trace.open) close(&waiting.trace);
      }
    });
    for (auto& [key, of] : processes_) of.open = false;
    return found;
  }
  static bool AnyOpen(const Of& of) {
    for (const auto& [name, waiting] : of.traces) {
      if (waiting.trace.open) return true;
    }
    return false;
  }
  template <class Point, class Close>
  void EndOne(Of* of, Point&& point, Close&& close) {
    for (auto& [name, waiting] : of->traces) {
      Complete(of, &waiting, point);
      if (waiting.trace.open) close(&waiting.trace);
    }
  }
  template <class Point>
  void Complete(Of* of, Waiting* waiting, Point&& point) {
    if (waiting->count == 0) return;
    LossPoint done = waiting->point;
    done.value /= static_cast<double>(waiting->count);
    done.alone = of->traces.size() == 1;
    waiting->count = 0;
    waiting->done = done.step;
    point(&waiting->trace, done);
  }

  ProcessTable<Of> processes_;
};

}  // namespace telltale::rules
