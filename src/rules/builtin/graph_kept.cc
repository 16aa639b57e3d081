// SPDX-License-Identifier: Apache-2.0
// GraphKept: backward(retain_graph=True) goes back through the steps before, since something of
// them, a hidden state mostly, was not detached.
//
// retain_graph alone is no defect: two losses of one graph need it. What tells is that the backward
// becomes longer and longer while the forward does not.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::graph_kept {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"growth_percent", 50, "%", "Growth of the backward since the begin, below it nothing."},
    {"high_percent", 200, "%", "Growth from which the finding is high."},
    {"min_tau", 0.7, "", "Share of the pairs of cells that grew, less those that fell."},
    {"cell_steps", 16, "steps", "Steps of a cell at first."},
};

constexpr std::size_t kCells = 32;
constexpr std::size_t kMinCells = 8;
constexpr std::int64_t kWarmupSteps = 10;

struct Cell {
  double steps = 0;
  double forward = 0;  ///< Median time of a step, ns.
  double backward = 0;
};

struct Process : LoopProcess {
  double calls = 0;  ///< Of backward with retain_graph=True.
  double backwards = 0;
  std::int64_t first_step = -1;
  std::int64_t first_ns = 0;
  std::size_t cell_steps = 0;
  std::size_t in_cell = 0;                ///< Steps of the cell that comes in,
  std::vector<double> forward, backward;  ///< and of those of them that stand for all, in ns.
  std::vector<Cell> cells;
};

class GraphKept final : public LoopRule<Process> {
 public:
  explicit GraphKept(const Parameters& p)
      : growth_(p.Get("growth_percent") / 100),
        high_(p.Get("high_percent") / 100),
        min_tau_(p.Get("min_tau")),
        cell_steps_(static_cast<std::size_t>(std::max<std::int64_t>(2, p.GetInt("cell_steps")))) {}

 protected:
  std::string Lacks() const override { return "no backward pass was timed"; }
  bool Reads(std::string_view kind) const override { return kind == "backward.retained"; }

  void OnEvent(const format::EventRow&, const nlohmann::json& data, Process* process) override {
    process->calls = NumberIn(data, "calls");
    process->backwards = NumberIn(data, "backwards");
  }

  void OnStep(const format::StepRow& row, Process* process) override {
    if (process->steps <= kWarmupSteps || row.backward_ns <= 0) return;
    SeesData();
    if (process->first_step < 0) {
      process->first_step = row.step;
      process->first_ns = row.time_ns;
      process->cell_steps = cell_steps_;
    }
    if (StandsForAll(process->in_cell++, process->cell_steps)) {
      process->forward.push_back(static_cast<double>(row.forward_ns));
      process->backward.push_back(static_cast<double>(row.backward_ns));
    }
    if (process->in_cell < process->cell_steps) return;
    process->cells.push_back({static_cast<double>(std::exchange(process->in_cell, 0)),
                              MedianOf(std::move(process->forward)),
                              MedianOf(std::move(process->backward))});
    process->forward.clear();
    process->backward.clear();
    if (process->calls > 0 && process->cells.size() >= kMinCells) Judge(process);
    if (process->cells.size() >= kCells) Merge(process);
  }

 private:
  /// Each two cells become one, and the next ones are twice as long.
  static void Merge(Process* process) {
    std::vector<Cell> merged;
    for (std::size_t i = 0; i + 1 < process->cells.size(); i += 2) {
      const Cell& a = process->cells[i];
      const Cell& b = process->cells[i + 1];
      merged.push_back(
          {a.steps + b.steps, (a.forward + b.forward) / 2, (a.backward + b.backward) / 2});
    }
    process->cells = std::move(merged);
    process->cell_steps *= 2;
  }

  void Judge(Process* process) {
    const std::vector<Cell>& cells = process->cells;
    const std::size_t n = cells.size();
    double grew = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        grew += cells[j].backward > cells[i].backward   ? 1
                : cells[j].backward < cells[i].backward ? -1
                                                        : 0;
      }
    }
    const double tau = grew / (static_cast<double>(n * (n - 1)) / 2);
    const auto growth = [&](double Cell::*time) {
      const double begin = (cells[0].*time + cells[1].*time) / 2;
      const double now = (cells[n - 1].*time + cells[n - 2].*time) / 2;
      return begin > 0 ? now / begin - 1 : 0.0;
    };
    const double backward = growth(&Cell::backward);
    const double forward = growth(&Cell::forward);
    const bool grows = backward >= growth_ && tau >= min_tau_ && forward < backward / 2;
    if (!grows) {
      if (backward < growth_ / 2) TakeBack(process, "");
      return;
    }
    const double begin = (cells[0].backward + cells[1].backward) / 2;
    const double now = (cells[n - 1].backward + cells[n - 2].backward) / 2;
    double lost_ns = 0;
    for (const Cell& cell : cells) lost_ns += std::max(0.0, cell.backward - begin) * cell.steps;
    Incident incident = BeginAt(process->first_step, process->first_ns,
                                backward >= high_ ? Severity::kHigh : Severity::kMedium);
    incident.cost_seconds = lost_ns / 1e9;
    incident.message = fmt::format(
        "Each backward goes back through the graphs of the steps before: it takes {} % longer than "
        "at first",
        Figure(100 * backward));
    incident.cause = fmt::format(
        "backward(retain_graph=True) keeps the graph of each step, and something of it, a hidden "
        "state mostly, goes into the next step without detach(). The backward took {} ms at first "
        "and takes {} ms now; the forward did not grow with it.",
        Millis(begin), Millis(now));
    incident.advice =
        "Detach what is carried from step to step (hidden = hidden.detach(), of an LSTM both "
        "tensors) and leave out retain_graph=True.";
    incident.confidence = std::min(0.95, 0.5 + 0.5 * tau);
    nlohmann::ordered_json evidence;
    evidence["retain_graph_calls"] = process->calls;
    evidence["backwards"] = process->backwards;
    evidence["first_ms"] = Rounded(begin / 1e6);
    evidence["now_ms"] = Rounded(now / 1e6);
    evidence["growth"] = Rounded(backward);
    evidence["forward_growth"] = Rounded(forward);
    evidence["tau"] = Rounded(tau);
    incident.evidence = JsonText(evidence);
    Say(process, "", std::move(incident));
  }

  const double growth_;
  const double high_;
  const double min_tau_;
  const std::size_t cell_steps_;
};

}  // namespace

const RuleDesc kGraphKeptDesc{
    .name = "GraphKept",
    .summary = "Each backward goes back through the graphs of all steps before.",
    .formula =
        "backward = its time in a TRAIN step, the first ten apart, in cells of cell_steps, each "
        "the median; of 32 cells each two become one. From 8 cells on, where an event "
        "`backward.retained` says that retain_graph=True was given: growth = mean of the last two "
        "cells / mean of the first two − 1; τ = Kendall's, of backward over the cells. Medium "
        "where growth ≥ growth_percent, τ ≥ min_tau and the forward grew by less than half of "
        "that; high from high_percent. retain_graph=True alone is no finding: several losses of "
        "one graph need it. Cost = Σ (backward − mean of the first two cells).",
    .how_to_fix =
        "Detach what goes from one step into the next, a hidden state mostly, and leave out "
        "retain_graph=True.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .example = "hidden = rnn(x, hidden); loss_of(hidden).backward(retain_graph=True)",
    .standing = {.theme = Theme::kDrift, .order = 0},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeGraphKept(const Parameters& parameters) {
  return std::make_unique<GraphKept>(parameters);
}

}  // namespace telltale::rules::graph_kept
