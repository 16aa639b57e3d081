// SPDX-License-Identifier: Apache-2.0
// What the rules that follow a training loss share: the losses of one name in one process, in
// order, with the time and the learning rate of their step. Another fit in the same process begins
// anew; losses of reinforcement learning are not told.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "format/records.gen.h"
#include "rules/builtin/loss_fits.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/reinforcement.h"
#include "rules/builtin/training_facts.h"
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
    if (series.table != format::TableId::kScalars) return false;
    if (ReinforcementSigns::IsName(series.name)) return true;
    if (series.mode == "EVAL") return series.name == "loss";
    if (series.mode != "TRAIN") return false;
    return series.name == "loss" || IsFurtherLoss(series.name) || series.name == kSkipped ||
           LearningRates::IsRate(series.name);
  }

  /// `point(trace, LossPoint)` is called with each step's loss once it is complete; `close(trace)`
  /// where the process is another's now.
  template <class Point, class Close>
  void OnScalar(const format::ScalarRow& row, std::uint32_t writer, Point&& point, Close&& close) {
    Of* of = Find(row, writer, close);
    if (of == nullptr) return;
    if (ReinforcementSigns::IsName(row.name)) {
      of->reinforcement.SeeName();
      return;
    }
    if (row.mode != "TRAIN") {
      of->reinforcement.SeeEvaluation();
      return;
    }
    if (LearningRates::IsRate(row.name)) {
      of->rates.See(row.name, row.value, {row.step, row.time_ns, of->worked_s});
      return;
    }
    if (row.name == kSkipped) {
      // The optimizer skipped this step, so nothing was trained with its loss.
      of->fits.SeeSkipped(row.step);
      for (auto& [name, waiting] : of->traces) {
        if (waiting.point.step == row.step) waiting.count = 0;
      }
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
    if (waiting.steps.Restarts(row.step, row.time_ns)) {
      Complete(of, &waiting, point, close);
      of->fits.SeeRestart();
      waiting.point.step = waiting.done = -1;
    }
    if (row.step < waiting.point.step || row.step <= waiting.done) return;
    if (row.step > waiting.point.step) {
      Complete(of, &waiting, point, close);
      waiting.point = {row.step, row.time_ns, 0, of->rates.now(), of->worked_s, true};
    }
    waiting.point.value += row.value;
    ++waiting.count;
  }

  template <class Point, class Close>
  void OnStep(const format::StepRow& row, std::uint32_t writer, Point&& point, Close&& close) {
    if (row.duration_ns <= 0) return;
    Of* of = Find(row, writer, close);
    if (of == nullptr) return;
    if (row.mode != "TRAIN") {
      of->reinforcement.SeeStep(row);
      return;
    }
    if (!of->BeginStep(row.step)) return;
    of->reinforcement.SeeStep(row);
    of->fits.SeeStep(row.step);
    for (auto& [name, waiting] : of->traces) {
      if (waiting.point.step <= row.step) Complete(of, &waiting, point, close);
    }
    const std::int64_t waited = std::clamp<std::int64_t>(row.data_wait_ns, 0, row.duration_ns);
    of->worked_s += static_cast<double>(row.duration_ns - waited) / 1e9;
  }

  /// On any event: a process ends, or it says something of its loop.
  template <class Point, class Close>
  void OnEvent(const format::EventRow& event, std::uint32_t writer, Point&& point, Close&& close) {
    if (event.kind == "process.exit") {
      processes_.End(event, writer, [&](Of* of) { EndOne(of, point, close); });
      return;
    }
    const bool fit = FitEvents::Wants(event.kind);
    const bool fact = TrainingFacts::Wants(event.kind);
    const bool acts = ReinforcementSigns::IsEvent(event.kind);
    if (!fit && !fact && !acts) return;
    Of* of = Find(event, writer, close);
    if (of == nullptr) return;
    if (acts) of->reinforcement.SeeEvent();
    if (fit && of->fits.See(event)) of->rates.Renew();
    if (fact) of->facts.See(event);
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
  /// Whether a process has the signs of reinforcement learning.
  bool reinforcement() const { return reinforcement_; }
  /// What is known of the loop of a trace.
  const TrainingFacts& FactsOf(const Trace* trace) {
    for (auto& [key, of] : processes_) {
      for (auto& [name, waiting] : of.traces) {
        if (&waiting.trace == trace) return of.facts;
      }
    }
    return no_facts_;
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
  /// The scalar that a step without a step of the optimizer has.
  static constexpr std::string_view kSkipped = "optimizer.skipped";
  static constexpr std::size_t kMaxTraces = 16;

  struct Waiting {
    std::string name;
    Trace trace;
    LossPoint point;
    std::int64_t count = 0;   ///< Losses of the step that comes in.
    std::int64_t done = -1;   ///< Step that was told.
    std::int64_t points = 0;  ///< Steps that were told.
    FitBorder border;
    StepCount steps;
  };
  struct Of : TrainingProcess {
    std::map<std::string, Waiting, std::less<>> traces;
    LearningRates rates;
    TrainingFacts facts;
    FitEvents fits;
    ReinforcementSigns reinforcement;
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
  /// No other loss takes part in the training: one that came in a step or two long ago does not.
  static bool IsAlone(const Of& of, const Waiting& waiting, std::int64_t step) {
    constexpr std::int64_t kRecently = 20;
    constexpr std::int64_t kSeldom = 3;
    for (const auto& [name, other] : of.traces) {
      if (&other != &waiting && (other.points >= kSeldom || step - other.done <= kRecently)) {
        return false;
      }
    }
    return true;
  }
  template <class Point, class Close>
  void EndOne(Of* of, Point&& point, Close&& close) {
    for (auto& [name, waiting] : of->traces) {
      Complete(of, &waiting, point, close);
      if (waiting.trace.open) close(&waiting.trace);
    }
  }
  template <class Point, class Close>
  void Complete(Of* of, Waiting* waiting, Point&& point, Close&& close) {
    if (waiting->count == 0) return;
    LossPoint done = waiting->point;
    done.value /= static_cast<double>(waiting->count);
    done.alone = IsAlone(*of, *waiting, done.step);
    waiting->count = 0;
    waiting->done = done.step;
    ++waiting->points;
    Trace* const trace = &waiting->trace;
    of->reinforcement.SeeLoss(done.value);
    const bool rises_by_nature = of->reinforcement.Found();
    const bool begins = waiting->border.Begins(of->fits, done.value);
    if ((rises_by_nature || begins) && trace->open) close(trace);
    if (rises_by_nature) {
      reinforcement_ = true;
      return;
    }
    if (begins) {
      Trace begun;
      begun.rank = trace->rank;
      begun.pid = trace->pid;
      begun.attempt = trace->attempt;
      *trace = std::move(begun);
    }
    point(trace, done);
  }

  ProcessTable<Of> processes_;
  TrainingFacts no_facts_;
  bool reinforcement_ = false;
};

/// A rule that follows each training loss by itself. `Trace`: as for LossTraces.
template <class Trace>
class LossRule : public Rule {
 public:
  bool Wants(const Series& series) final { return LossTraces<Trace>::Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) final {
    const auto point = [&](Trace* trace, const LossPoint& p) { Take(trace, p, reporter); };
    const auto close = [&](Trace* trace) { Close(trace, reporter); };
    if (const auto* scalar = record.As<format::ScalarRow>()) {
      traces_.OnScalar(*scalar, record.writer, point, close);
    } else if (const auto* step = record.As<format::StepRow>()) {
      traces_.OnStep(*step, record.writer, point, close);
    } else if (const auto* event = record.As<format::EventRow>()) {
      traces_.OnEvent(*event, record.writer, point, close);
    }
  }

  void OnEnd(Reporter* reporter) final {
    traces_.EndAll([&](Trace* trace, const LossPoint& p) { Take(trace, p, reporter); },
                   [&](Trace* trace) { Close(trace, reporter); });
  }

  bool has_data() const final { return has_data_; }
  bool applies() const final { return !traces_.reinforcement(); }
  std::string Missing() const final {
    if (!applies()) return std::string(ReinforcementSigns::kMissing);
    if (no_number_ < 0 || 2 * no_numbers_ < losses_) return {};
    return fmt::format("the loss is no finite number from step {} on", no_number_);
  }
  std::string Summary() const final {
    if (applies()) return {};
    nlohmann::ordered_json summary;
    summary["not_judged"] = ReinforcementSigns::kWord;
    return JsonText(summary);
  }

 protected:
  virtual void OnLoss(Trace* trace, const LossPoint& point, Reporter* reporter) = 0;

  static void Close(Trace* trace, Reporter* reporter) {
    reporter->Close(trace->incident);
    trace->open = false;
  }
  static void Recover(Trace* trace, Reporter* reporter) {
    reporter->Recover(trace->incident);
    trace->open = false;
  }
  void SeesData() { has_data_ = true; }
  LossTraces<Trace>& traces() { return traces_; }

 private:
  void Take(Trace* trace, const LossPoint& point, Reporter* reporter) {
    ++losses_;
    if (!std::isfinite(point.value)) {
      ++no_numbers_;
      if (no_number_ < 0) no_number_ = point.step;
    }
    OnLoss(trace, point, reporter);
  }

  LossTraces<Trace> traces_;
  std::int64_t losses_ = 0;
  std::int64_t no_numbers_ = 0;  ///< Of these: NaN or infinite.
  std::int64_t no_number_ = -1;  ///< Step of the first of them.
  bool has_data_ = false;
};

}  // namespace telltale::rules
