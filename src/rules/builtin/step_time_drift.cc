// SPDX-License-Identifier: Apache-2.0
// StepTimeDrift: steps take longer and longer.
//
// A slow drift is below every threshold from one step to the next. The whole history is kept in a
// few cells of equal length, whose trend is judged: it must be monotone, so that neither a step to
// a new level nor noise is one, and larger than a share of where it began.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/held_facts.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::step_time_drift {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"low_percent", 20, "%", "Growth since the begin, below it nothing."},
    {"medium_percent", 50, "%",
     "Growth from which the finding is medium, however little was lost."},
    {"medium_lost_percent", 15, "%",
     "Share of the time of all steps that was lost, from which it is medium too."},
    {"high_percent", 100, "%", "Growth from which it is high."},
    {"min_tau", 0.7, "", "Share of the pairs of cells that grew, less those that fell."},
    {"min_steps", 200, "steps", "Steps before anything is said."},
};

constexpr std::int64_t kWarmupSteps = 10;
constexpr std::size_t kFirstCell = 20;  ///< Steps of a cell at first; pairs are merged when full.
constexpr std::size_t kCells = 32;
constexpr std::size_t kMinCells = 8;
constexpr double kMinMemoryGrowth = 1.1;
/// Of its entries at the first look: a container that has so many more may make steps longer.
constexpr double kMinEntriesGrowth = 1.2;
/// Of the growth: cells that differ by less are of one level.
constexpr double kApart = 0.05;

constexpr std::size_t kPhaseCount = 5;
constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "data wait", "forward", "backward", "optimizer", "other"};
constexpr std::size_t kOther = 4;

struct Cell {
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  double steps = 0;
  double own = 0;  ///< Median time of a step less waits for other ranks, ns.
  double batch = 0;
  std::array<double, kPhaseCount> phases{};  ///< Medians.
  double rss = 0;                            ///< Newest sample of the process, bytes.
};

class StepTimeDrift final : public Rule {
 public:
  explicit StepTimeDrift(const Parameters& p)
      : low_(p.Get("low_percent") / 100),
        medium_(p.Get("medium_percent") / 100),
        medium_lost_(p.Get("medium_lost_percent") / 100),
        high_(p.Get("high_percent") / 100),
        min_tau_(p.Get("min_tau")),
        min_steps_(static_cast<double>(p.GetInt("min_steps"))) {}

  bool Wants(const Series& series) override {
    return series.name == "proc.rss" && series.pid != 0 &&
           series.table == format::TableId::kMetrics;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      for (auto& [key, process] : processes_) {
        if (process.pid == metric->pid && process.writer == writer_) process.rss = metric->value;
      }
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      } else if (event->kind == "memory.held") {
        OnHeld(*event);
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Step {
    double own, batch;
    std::array<double, kPhaseCount> phases;
  };
  struct Process : TrainingProcess {
    std::int64_t seen = 0;
    double rss = 0;
    std::int64_t first_look = -1;            ///< Step of the first look at what is held.
    std::vector<HeldFacts::Container> held;  ///< Containers of the program at the newest look.
    HeldFacts::Container grown;  ///< Of them the one that grew most and still grows; no name: none.
    std::size_t cell_steps = kFirstCell;
    std::size_t in_cell = 0;  ///< Steps of the cell that comes in,
    std::vector<Step> steps;  ///< and those of them that stand for all.
    Cell cell;
    std::vector<Cell> cells;
  };

  /// Filled step by step, and not once: it has more entries than at the look before, or, where it
  /// is seen for the first time, as many more than at the first look as steps have passed.
  static bool StillGrows(const HeldFacts::Container& now, std::int64_t step,
                         const Process& process) {
    const auto before = std::find_if(process.held.begin(), process.held.end(),
                                     [&](const auto& old) { return old.name == now.name; });
    if (before != process.held.end()) return before->entries < now.entries;
    if (now.first <= 0 || step < 0) return false;
    const double steps =
        static_cast<double>(step + 1) / static_cast<double>(process.first_look + 1);
    const double entries = now.entries / now.first;
    return entries > 0.5 * steps && entries < 2 * steps;
  }

  void OnHeld(const format::EventRow& event) {
    const auto data = ParseJson(event.data);
    if (!data.is_object() || FlagIn(data, "worker")) return;
    const HeldFacts facts = HeldFacts::Of(data);
    for (auto& [key, process] : processes_) {
      if (process.pid != event.pid || process.writer != writer_) continue;
      if (process.first_look < 0) process.first_look = std::max<std::int64_t>(0, facts.step);
      process.grown = {};
      for (const HeldFacts::Container& each : facts.containers) {
        // What a data set keeps makes fetches longer, and has its own words.
        if (each.data_set || each.entries < kMinEntriesGrowth * std::max(1.0, each.first)) continue;
        if (!StillGrows(each, facts.step, process)) continue;
        if (each.entries - each.first > process.grown.entries - process.grown.first) {
          process.grown = each;
        }
      }
      process.held = facts.containers;
    }
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    if (row.duration_ns <= 0) return;
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { End(former, reporter); });
    if (process == nullptr || !process->BeginStep(row.step)) return;
    if (++process->seen <= kWarmupSteps) return;
    const auto ns = [](std::int64_t v) { return static_cast<double>(v); };
    Cell& cell = process->cell;
    if (process->in_cell == 0) {
      cell = Cell();
      cell.first_step = row.step;
      cell.start_ns = row.time_ns;
    }
    cell.last_step = row.step;
    cell.end_ns = row.time_ns + row.duration_ns;
    if (StandsForAll(process->in_cell++, process->cell_steps)) {
      const format::StepRow own = WithoutProbe(row);
      process->steps.push_back({std::max(0.0, ns(own.duration_ns - own.comm_wait_ns)),
                                ns(row.batch_size),
                                {ns(own.data_wait_ns), ns(own.forward_ns), ns(own.backward_ns),
                                 ns(own.optimizer_ns), ns(own.other_ns)}});
    }
    if (process->in_cell < process->cell_steps) return;
    Complete(process);
    Judge(process, reporter);
  }

  static void Complete(Process* process) {
    std::vector<double> values(process->steps.size());
    const auto median = [&](auto&& of) {
      std::transform(process->steps.begin(), process->steps.end(), values.begin(), of);
      return MedianOf(values);
    };
    Cell& cell = process->cell;
    cell.steps = static_cast<double>(process->in_cell);
    cell.own = median([](const Step& s) { return s.own; });
    cell.batch = median([](const Step& s) { return s.batch; });
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      cell.phases[i] = median([i](const Step& s) { return s.phases[i]; });
    }
    cell.rss = process->rss;
    process->cells.push_back(cell);
    process->steps.clear();
    process->in_cell = 0;
    if (process->cells.size() < kCells) return;
    // Full: each two become one, and the next ones are twice as long.
    std::vector<Cell> merged;
    for (std::size_t i = 0; i + 1 < process->cells.size(); i += 2) {
      const Cell& a = process->cells[i];
      const Cell& b = process->cells[i + 1];
      Cell both = a;
      both.last_step = b.last_step;
      both.end_ns = b.end_ns;
      both.steps = a.steps + b.steps;
      both.own = (a.own + b.own) / 2;
      both.batch = (a.batch + b.batch) / 2;
      for (std::size_t p = 0; p < kPhaseCount; ++p) {
        both.phases[p] = (a.phases[p] + b.phases[p]) / 2;
      }
      both.rss = b.rss;
      merged.push_back(both);
    }
    process->cells = std::move(merged);
    process->cell_steps *= 2;
  }

  /// Larger batches take longer: the time of a step of the first size.
  static double TimeOf(const Cell& cell, const Cell& first) {
    return cell.batch > 0 && first.batch > 0 ? cell.own * first.batch / cell.batch : cell.own;
  }

  struct Trend {
    double tau = 0;    ///< Kendall's, of time over cells.
    double begin = 0;  ///< Of the first quarter, ns.
    double now = 0;    ///< Of the last quarter.
    double per_step = 0;
    double growth = 0;
    double lost_ns = 0;
    double all_ns = 0;  ///< Of all steps.
  };

  static Trend TrendOf(const std::vector<Cell>& cells) {
    Trend trend;
    std::vector<double> times;
    for (const Cell& cell : cells) times.push_back(TimeOf(cell, cells.front()));
    const std::size_t n = times.size();
    const auto quarter = static_cast<std::ptrdiff_t>(std::max<std::size_t>(2, n / 4));
    trend.begin = MedianOf({times.begin(), times.begin() + quarter});
    trend.now = MedianOf({times.end() - quarter, times.end()});
    // Cells of one level differ by their noise, which is no order.
    const double apart = kApart * std::abs(trend.now - trend.begin);
    double grew = 0;
    std::vector<double> slopes;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        const double rise = times[j] - times[i];
        grew += rise > apart ? 1 : rise < -apart ? -1 : 0;
        const auto steps = static_cast<double>(cells[j].first_step - cells[i].first_step);
        if (steps > 0) slopes.push_back(rise / steps);
      }
    }
    trend.tau = grew / (static_cast<double>(n * (n - 1)) / 2);
    trend.per_step = MedianOf(std::move(slopes));
    trend.growth = trend.begin > 0 ? trend.now / trend.begin - 1 : 0;
    for (std::size_t i = 0; i < n; ++i) {
      trend.lost_ns += std::max(0.0, times[i] - trend.begin) * cells[i].steps;
      trend.all_ns += times[i] * cells[i].steps;
    }
    return trend;
  }

  void Judge(Process* process, Reporter* reporter) {
    double steps = 0;
    for (const Cell& cell : process->cells) steps += cell.steps;
    if (process->cells.size() < kMinCells || steps + kWarmupSteps < min_steps_) return;
    has_data_ = true;
    const Trend trend = TrendOf(process->cells);
    if (process->open) {
      if (trend.growth < low_ / 2 || trend.tau < min_tau_ / 2) {
        reporter->Recover(process->incident);
        process->open = false;
        return;
      }
    } else {
      if (trend.growth < low_ || trend.tau < min_tau_ || trend.per_step <= 0) return;
      processes_.Open(process, process->cells.front().first_step, process->cells.front().start_ns);
    }
    Describe(process, trend);
    reporter->Report(process->incident);
  }

  static std::string WhatToDoWith(const HeldFacts::Container& grown) {
    const std::string what = fmt::format("See what each step does with `{}`", grown.name);
    if (grown.type == "deque") {
      return what +
             ": an entry in the middle of a deque takes longer to reach the longer the deque is, "
             "so draw samples from a ring buffer (a list of fixed length, or an array). ";
    }
    if (grown.type != "list") return what + ". ";
    return what +
           ": where a step goes through all entries, keep a running sum or only the newest of "
           "them. ";
  }

  void Describe(Process* process, const Trend& trend) {
    Incident& incident = process->incident;
    const Cell& first = process->cells.front();
    const Cell& last = process->cells.back();
    incident.last_step = last.last_step;
    incident.end_ns = std::max(incident.start_ns, last.end_ns);
    incident.cost_seconds = trend.lost_ns / 1e9;
    const bool medium = trend.growth >= medium_ || trend.lost_ns >= medium_lost_ * trend.all_ns;
    const Severity severity = trend.growth >= high_ ? Severity::kHigh
                              : medium              ? Severity::kMedium
                                                    : Severity::kLow;
    incident.severity = std::max(incident.severity, severity);
    incident.message =
        fmt::format("Steps take {} % longer than at first", Figure(100 * trend.growth));
    std::size_t widest = 0;
    double sum = 0;
    std::array<double, kPhaseCount> grown{};
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      grown[i] = last.phases[i] - first.phases[i];
      sum += std::max(0.0, grown[i]);
      if (grown[i] > grown[widest]) widest = i;
    }
    const double part = sum > 0 ? grown[widest] / sum : 0;
    const bool memory = first.rss > 0 && last.rss > kMinMemoryGrowth * first.rss;
    const bool listed = part >= 0.8 && widest == kOther && !process->grown.name.empty();
    const std::string where =
        widest == kOther ? std::string("outside data wait, forward, backward and optimizer")
                         : fmt::format("in {}", kPhaseNames[widest]);
    if (part >= 0.8) {
      incident.cause = fmt::format(
          "A step took {} ms at first and takes {} ms now, {} ms more each 1000 steps, {}{}{}.",
          Millis(trend.begin), Millis(trend.now), Millis(1000 * trend.per_step), where,
          listed ? fmt::format("; the {} `{}` grew from {:.0f} to {:.0f} entries meanwhile",
                               process->grown.type, process->grown.name, process->grown.first,
                               process->grown.entries)
                 : std::string(),
          memory ? fmt::format("; the memory of the process grew from {} to {} MB meanwhile",
                               Figure(first.rss / 1e6), Figure(last.rss / 1e6))
                 : std::string());
    } else {
      incident.cause = "cause not found";
    }
    if (widest == 0) {
      incident.advice =
          "Look at what the loader does more of with time: a cache or list that grows, a file that "
          "is read from its begin for each sample.";
    } else if (widest == kOther || memory) {
      incident.advice = listed ? WhatToDoWith(process->grown) : std::string();
      incident.advice +=
          "Look for a list, history or log that grows and is gone through in each step; keep "
          "loss.item() and not the loss, which holds its graph.";
    } else {
      incident.advice =
          "Look at the inputs: do they become longer? Then at clocks and temperatures, and for a "
          "graph that is kept (retain_graph, a hidden state that is not detached).";
    }
    incident.confidence = std::min(0.95, 0.5 + 0.5 * trend.tau * (part >= 0.8 ? 1 : 0.8));
    nlohmann::ordered_json evidence;
    evidence["first_ms"] = Rounded(trend.begin / 1e6);
    evidence["now_ms"] = Rounded(trend.now / 1e6);
    evidence["growth"] = Rounded(trend.growth);
    evidence["ms_per_1000_steps"] = Rounded(1000 * trend.per_step / 1e6);
    evidence["tau"] = Rounded(trend.tau);
    evidence["cells"] = process->cells.size();
    evidence["steps_per_cell"] = process->cell_steps;
    evidence["phase"] = kPhaseNames[widest];
    evidence["phase_part"] = Rounded(part);
    evidence["lost_part"] = Rounded(trend.all_ns > 0 ? trend.lost_ns / trend.all_ns : 0);
    if (listed) {
      evidence["container"] = process->grown.name;
      evidence["container_type"] = process->grown.type;
      evidence["first_entries"] = process->grown.first;
      evidence["entries"] = process->grown.entries;
    }
    if (first.rss > 0 && last.rss > 0) {
      evidence["first_rss_bytes"] = first.rss;
      evidence["rss_bytes"] = last.rss;
    }
    incident.evidence = JsonText(evidence);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  const double low_;
  const double medium_;
  const double medium_lost_;
  const double high_;
  const double min_tau_;
  const double min_steps_;

  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kStepTimeDriftDesc{
    .name = "StepTimeDrift",
    .summary = "Steps take longer and longer.",
    .formula =
        "time = duration − waits for other ranks of a TRAIN step, the first ten apart; where batch "
        "sizes are known, of a batch of the first size. Cells of 20 steps, each the median; of 32 "
        "cells each two become one. τ = Kendall's, of time over the cells, where those that differ "
        "by less than 5 % of the growth are equal; growth = median of the last quarter / median of "
        "the first − 1; lost = Σ (time − median of the first quarter). Told from 8 cells and "
        "min_steps on where τ ≥ min_tau, the median of all slopes is above 0, and growth ≥ "
        "low_percent: low, medium from medium_percent or where lost ≥ medium_lost_percent of Σ "
        "time, high from high_percent. A step to a new level has a τ of at most 0.5: it is no "
        "drift. A "
        "cause is named where one phase makes 80 % of the growth; where the time grew outside the "
        "four phases, also the list, dict or deque of the program that has grown most, by a fifth "
        "at least, and still grows (event `memory.held`). Over where growth or τ is below half of "
        "its threshold, and "
        "where its process ends. Cost = lost.",
    .how_to_fix =
        "Look for what grows: a list that is gone through in each step, losses that are kept with "
        "their graph, a hidden state that is not detached, a log file that is read again, inputs "
        "that become longer; then at clocks and temperatures.",
    .table_mask = store::MaskOf(format::TableId::kSteps) |
                  store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "losses.append(loss.item()); mean = sum(losses) / len(losses)",
    .standing = {.theme = Theme::kDrift, .order = 1},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeStepTimeDrift(const Parameters& parameters) {
  return std::make_unique<StepTimeDrift>(parameters);
}

}  // namespace telltale::rules::step_time_drift
