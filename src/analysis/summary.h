// SPDX-License-Identifier: Apache-2.0
// What a run amounts to, gathered in one pass over its records: steps and their phases, run phases,
// loss, spans, system usage, ledger, what Telltale itself cost. Memory is bounded whatever the
// run's length; what exceeds a bound is counted, never dropped silently.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/columns.h"
#include "analysis/quantiles.h"
#include "base/saturate.h"
#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::analysis {

inline constexpr std::array<std::string_view, 6> kPhases = {"data wait", "comm wait", "forward",
                                                            "backward",  "optimizer", "other"};
using PhaseTimes = std::array<std::int64_t, 6>;  ///< ns, in the order of kPhases.
PhaseTimes PhasesOf(const format::StepRow& row);

/// Steps of one mode and rank.
struct StepGroup {
  std::uint64_t steps = 0;
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  Sum duration_ns = 0;  ///< Sum over all steps.
  std::array<Sum, 6> phase_ns{};
  Sum samples = 0;
  std::uint64_t skipped = 0;
  Sum probe_ns = 0;
  /// Without the first step of each attempt: it warms up, and would distort medians (not costs).
  Quantiles steady_ns;
  std::array<Quantiles, 6> steady_phase_ns;
  Sum steady_samples = 0;
};

/// Phases over the axis of steps, TRAIN, all ranks.
struct PhaseSeries {
  std::array<Columns, 6> columns;
  /// Mean ns of each phase over the columns that begin in [from, to); nullopt where there are none.
  std::optional<std::array<double, 6>> Mean(std::int64_t from, std::int64_t to) const;
};

/// Who has asked for the end of an attempt, and why; `rule`: its name where a rule did, else empty.
struct StoppedBy {
  std::string who, rule, why;
  bool perhaps = false;  ///< Whether its signal was sent is not known.
};

/// Where the time of one attempt went; 0 where the point was not reached.
struct RunPhases {
  std::int64_t start_ns = 0;
  std::int64_t first_forward_ns = 0;
  std::int64_t last_step_ns = 0;
  std::int64_t end_ns = 0;
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::optional<StoppedBy> stopped;  ///< It was stopped by a request, a rule's or a person's.
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
};

/// Phases of a run, in order. An attempt that made no forward pass has only kNoStep; kBetween is
/// the time between the end of one attempt and the start of the next.
enum class RunPhase : std::uint8_t { kInitialization, kLoop, kFinalization, kNoStep, kBetween };
inline constexpr std::size_t kRunPhaseCount = 5;
std::string_view Name(RunPhase phase);

/// One phase of one attempt.
struct RunInterval {
  RunPhase phase;
  std::uint32_t attempt;
  std::int64_t start_ns;
  std::int64_t end_ns;
};

/// Where the time of all attempts went.
struct RunShares {
  std::array<double, kRunPhaseCount> seconds{};  ///< By RunPhase.
  double total = 0;
  double seconds_of(RunPhase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  /// 0 where the run took no time.
  double share_of(RunPhase phase) const { return total > 0 ? seconds_of(phase) / total : 0; }
};

struct SpanTotal {
  std::uint64_t count = 0;
  Sum total_ns = 0;
  Quantiles duration_ns;
};

struct LongSpan {
  std::int64_t duration_ns = 0;
  std::int64_t time_ns = 0;
  std::string name;
  std::string category;
  std::int64_t step = -1;
  std::int32_t pid = 0;
};

struct MetricKey {
  std::string name, node, subject;
  auto operator<=>(const MetricKey&) const = default;
};
struct MetricTotal {
  Quantiles values;
  std::string unit;
};

/// One scalar of one mode. Last, lowest and highest are of finite values and mean something only
/// where there are any.
struct ScalarTotal {
  struct At {
    double value = 0;
    std::int64_t step = -1;
  };
  std::uint64_t count = 0;  ///< Finite values.
  std::uint64_t not_finite = 0;
  At last, min, max;
};

/// What one rank logged.
struct RankScalars {
  Columns loss;       ///< TRAIN, by step.
  Columns eval_loss;  ///< EVAL, by step of EVAL.
  std::uint64_t loss_not_finite = 0;
  std::int64_t loss_not_finite_step = -1;  ///< The first.
  std::optional<double> first_loss;        ///< Finite.
  std::optional<double> last_loss;         ///< The newest, NaN and Inf too.
  std::map<std::pair<std::string, std::string>, ScalarTotal> values;  ///< By (name, mode).
};

/// A process of the training that registered.
struct ProcessFacts {
  std::string kind;             ///< trainer, worker or other; empty where not known (yet).
  std::int64_t worker_id = -1;  ///< Of a data loader's worker.
  std::int32_t rank = 0;
};

struct LedgerTotal {
  std::uint64_t value = 0;
  std::string unit;
  bool loss = false;
};

struct Gap {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  std::string cause;
};

/// What the plan was changed to, or what the governor says of it; a sentence.
struct CaptureChange {
  std::int64_t time_ns = 0;
  std::string message;
  std::uint32_t writer = 0;
  bool acted = true;  ///< Less is taken, or more again. False: the budget is exceeded all the same.
};

struct GovernorWord {
  std::uint32_t attempt = 0;
  std::string data;  ///< JSON; empty where it said nothing of this plan.
};

class Summary {
 public:
  void OnRecord(const store::OrderedRecord& record);

  /// Tables that it reads.
  static std::uint32_t table_mask();

  std::uint64_t records = 0;
  std::int64_t first_ns = 0;  ///< Of all records.
  std::int64_t last_ns = 0;

  std::map<std::pair<std::string, std::int32_t>, StepGroup> steps;  ///< By (mode, rank).
  Columns step_ns;  ///< TRAIN step durations over steps, of train_rank().
  PhaseSeries phases;
  /// The newest 30 of TRAIN, of train_rank(); strings are not valid.
  std::deque<format::StepRow> last_steps;
  std::map<std::uint32_t, RunPhases> attempts;

  std::optional<double> lr;

  std::map<std::pair<std::string, std::string>, SpanTotal> spans;  ///< By (category, name).
  std::vector<LongSpan> longest_spans;                             ///< Longest first, at most 10.
  std::map<MetricKey, MetricTotal> metrics;
  /// Processor and memory of each process in `processes`, since it registered.
  std::map<MetricKey, MetricTotal> process_metrics;
  /// By (writer, pid), the first 256: pids are those of one node, whose agent writes its records.
  std::map<std::pair<std::uint32_t, std::int32_t>, ProcessFacts> processes;
  /// 100 − idle of each core over time; by (node, number).
  std::map<std::pair<std::string, int>, Columns> cores;
  Columns cpu_busy;  ///< Of the node, over time.
  Columns tree_cpu;  ///< Of the training's processes, percent of a core, over time.
  std::map<std::string, LedgerTotal> ledger;  ///< By name, over all subjects.
  std::vector<Gap> gaps;
  /// Since when nothing is known of attempts before the newest whose agents were killed, at
  /// most 16.
  std::vector<std::int64_t> lost_since_ns;
  /// Steps of the wall clock, in words, at most 16.
  std::vector<std::string> clock_steps;
  /// The last 50 of each; the first `plan` of an attempt is what it was started with.
  std::deque<CaptureChange> plans;
  std::deque<CaptureChange> thinned;
  std::uint64_t thinned_count = 0;  ///< Of those that acted.
  /// Windows of detail that have closed, or were not opened, the newest; what each process said.
  std::deque<CaptureChange> windows;
  /// What each writer's governor said last of the plan that holds: each node has its own.
  std::map<std::uint32_t, GovernorWord> governors;
  std::vector<std::string> disabled;         ///< Why the probe switched itself off.
  std::map<std::string, std::string> facts;  ///< Newest data (JSON) of framework, model, optimizer.
  std::vector<std::string> loaders;          ///< Data (JSON) of each dataloader, at most 16.
  std::set<std::string> nodes;
  std::set<std::int32_t> ranks;
  std::uint64_t trainers = 0;
  std::uint64_t workers = 0;
  std::uint64_t folded = 0;  ///< Names and subjects beyond the bounds.

  /// The node that this writer samples, where the run has several; else empty.
  std::string_view NodeOf(std::uint32_t writer) const;
  /// TRAIN steps over all ranks; the sum of the groups.
  StepGroup const* Train(std::int32_t rank) const;
  /// The lowest rank with TRAIN steps, -1 where none.
  std::int32_t train_rank() const;
  /// Whose steps and scalars are shown: train_rank(), where no rank trains the lowest; -1 where
  /// there is none.
  std::int32_t shown_rank() const;
  /// Of shown_rank().
  const RankScalars& scalars() const;
  /// TRAIN steps of all attempts together; of an attempt from its lowest to its highest: a trace
  /// begins at any, and an attempt may go on where another has ended.
  std::int64_t train_steps() const;
  /// Ordered by time, without overlap; intervals of no length are left out. An attempt that goes on
  /// ends at the newest record.
  std::vector<RunInterval> run_intervals() const;
  RunShares run_shares() const;
  /// Share of step time that Telltale has cost: what the probe took in all steps, and, where cores
  /// were scarce, what its own processes did.
  double cost_share() const;
  std::uint64_t ledger_value(std::string_view name) const;
  /// The facts of a process, as metrics name it; null where it has not registered.
  const ProcessFacts* ProcessAt(std::string_view node, std::int32_t pid) const;

 private:
  void OnStep(const format::StepRow& row);
  void OnScalar(const format::ScalarRow& row);
  void OnSpan(const format::SpanRow& row);
  void OnEvent(const format::EventRow& row, std::uint32_t writer);
  void OnMetric(const format::MetricRow& row, std::uint32_t writer);
  void OnProcessMetric(const format::MetricRow& row, std::uint32_t writer);
  /// The facts of a process, new where it is; null beyond the bound.
  ProcessFacts* Process(std::uint32_t writer, std::int32_t pid);
  void OnLedger(const format::LedgerRow& row);

  std::map<std::string, std::uint32_t, std::less<>> writers_;  ///< Of each node's metrics.
  std::map<std::tuple<std::string, std::string, std::uint32_t, std::int32_t>, std::uint64_t>
      ledger_parts_;
  std::map<std::pair<std::string, std::int32_t>, std::uint32_t> attempt_seen_;
  std::int32_t seen_train_rank_ = -1;  ///< train_rank() as of the newest TRAIN step.
  /// None of a rank above seen_train_rank_, once there is one: they would never be shown.
  std::map<std::int32_t, RankScalars> scalars_;
};

}  // namespace telltale::analysis
