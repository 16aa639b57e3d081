// SPDX-License-Identifier: Apache-2.0
#include "analysis/summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/saturate.h"
#include "base/utf8.h"
#include "format/event_number.h"

namespace telltale::analysis {
namespace {

constexpr std::size_t kCaptureChanges = 50;
constexpr std::size_t kMaxNames = 512;
constexpr std::size_t kMostOfAWord = 300;  ///< Bytes of what a person or a rule says.
constexpr std::size_t kMaxCores = 512;
constexpr std::size_t kMostWords = 16;  ///< Of things that a run seldom has.
constexpr std::size_t kMaxLedgerParts = 200'000;
constexpr std::size_t kMaxProcesses = 256;
constexpr std::size_t kLongest = 10;
constexpr std::size_t kLastSteps = 30;
constexpr std::int64_t kCoreColumnNs = 250'000'000;

int CoreOf(std::string_view subject) {
  if (!subject.starts_with("cpu:")) return -1;
  int core = -1;
  subject.remove_prefix(4);
  std::from_chars(subject.data(), subject.data() + subject.size(), core);
  return core;
}

/// `stopped` of a run.attempt_end; none where nobody has asked for the end.
std::optional<StoppedBy> StoppedOf(const nlohmann::json& data) {
  if (!data.is_object()) return std::nullopt;
  const auto stopped = data.find("stopped");
  if (stopped == data.end() || !stopped->is_object()) return std::nullopt;
  const auto text = [&](const char* key) -> std::string {
    const auto found = stopped->find(key);
    if (found == stopped->end() || !found->is_string()) return {};
    const auto& whole = found->get_ref<const std::string&>();
    return whole.substr(0, ValidUtf8Prefix(std::string_view(whole).substr(0, kMostOfAWord)));
  };
  const auto perhaps = stopped->find("perhaps");
  return StoppedBy{text("who"), text("rule"), text("why"),
                   perhaps != stopped->end() && *perhaps == true};
}

}  // namespace

PhaseTimes PhasesOf(const format::StepRow& row) {
  return {row.data_wait_ns, row.comm_wait_ns, row.forward_ns,
          row.backward_ns,  row.optimizer_ns, row.other_ns};
}

std::optional<std::array<double, 6>> PhaseSeries::Mean(std::int64_t from, std::int64_t to) const {
  std::array<double, 6> out{};
  std::uint64_t count = 0;
  for (std::size_t phase = 0; phase < columns.size(); ++phase) {
    count = 0;
    const Columns& series = columns[phase];
    for (std::size_t i = 0; i < series.columns().size(); ++i) {
      const std::int64_t x = series.begin() + static_cast<std::int64_t>(i) * series.width();
      if (x < from || x >= to) continue;
      out[phase] += series.columns()[i].sum;
      count += series.columns()[i].count;
    }
    if (count > 0) out[phase] /= static_cast<double>(count);
  }
  if (count == 0) return std::nullopt;
  return out;
}

std::uint32_t Summary::table_mask() {
  using format::TableId;
  return store::MaskOf(TableId::kMetrics) | store::MaskOf(TableId::kSpans) |
         store::MaskOf(TableId::kSteps) | store::MaskOf(TableId::kScalars) |
         store::MaskOf(TableId::kEvents) | store::MaskOf(TableId::kLedger);
}

void Summary::OnRecord(const store::OrderedRecord& record) {
  ++records;
  if (first_ns == 0) first_ns = record.ord_ns;
  last_ns = std::max(last_ns, record.ord_ns);
  if (const auto* step = record.As<format::StepRow>()) {
    OnStep(*step);
  } else if (const auto* scalar = record.As<format::ScalarRow>()) {
    OnScalar(*scalar);
  } else if (const auto* span = record.As<format::SpanRow>()) {
    OnSpan(*span);
  } else if (const auto* event = record.As<format::EventRow>()) {
    OnEvent(*event, record.writer);
  } else if (const auto* metric = record.As<format::MetricRow>()) {
    OnMetric(*metric, record.writer);
  } else if (const auto* ledger_row = record.As<format::LedgerRow>()) {
    OnLedger(*ledger_row);
  }
}

void Summary::OnStep(const format::StepRow& row) {
  if (row.duration_ns < 0) return;
  ranks.insert(row.rank);
  const std::pair key(std::string(row.mode), row.rank);
  StepGroup& group = steps[key];
  if (group.steps == 0 || row.step < group.first_step) group.first_step = row.step;
  group.last_step = std::max(group.last_step, row.step);
  ++group.steps;
  group.duration_ns += row.duration_ns;
  group.samples += std::max<std::int64_t>(0, row.batch_size);
  group.skipped += row.skipped ? 1 : 0;
  group.probe_ns += row.probe_ns;
  const PhaseTimes times = PhasesOf(row);
  for (std::size_t i = 0; i < times.size(); ++i) group.phase_ns[i] += times[i];

  const auto [seen, fresh] = attempt_seen_.try_emplace(key, row.attempt);
  const bool first_of_attempt = fresh || seen->second != row.attempt;
  seen->second = row.attempt;
  if (!first_of_attempt) {
    group.steady_ns.Add(static_cast<double>(row.duration_ns));
    group.steady_samples += std::max<std::int64_t>(0, row.batch_size);
    for (std::size_t i = 0; i < times.size(); ++i) {
      group.steady_phase_ns[i].Add(static_cast<double>(times[i]));
    }
  }
  if (row.mode != "TRAIN") return;

  RunPhases& attempt = attempts[row.attempt];
  if (attempt.first_step < 0 || row.step < attempt.first_step) attempt.first_step = row.step;
  attempt.last_step = std::max(attempt.last_step, row.step);
  attempt.last_step_ns = std::max(attempt.last_step_ns, row.time_ns + row.duration_ns);
  // A first step may last 50 times as long as the others: it is in the columns, as their maximum.
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (!first_of_attempt) phases.columns[i].Add(row.step, static_cast<double>(times[i]));
  }
  const std::int32_t shown = train_rank();
  if (shown != seen_train_rank_) {
    // A lower rank made its first step: what was kept is another's.
    seen_train_rank_ = shown;
    step_ns = Columns();
    last_steps.clear();
    scalars_.erase(scalars_.upper_bound(shown), scalars_.end());
  }
  if (row.rank != shown) return;
  step_ns.Add(row.step, static_cast<double>(row.duration_ns));
  last_steps.push_back(row);
  last_steps.back().mode = {};
  if (last_steps.size() > kLastSteps) last_steps.pop_front();
}

void Summary::OnScalar(const format::ScalarRow& row) {
  ranks.insert(row.rank);
  if (row.name == "lr" && std::isfinite(row.value)) lr = row.value;
  if (seen_train_rank_ >= 0 && row.rank > seen_train_rank_) return;
  RankScalars& of = scalars_[row.rank];
  const bool finite = std::isfinite(row.value);
  std::pair key(std::string(row.name), std::string(row.mode));
  if (of.values.size() < kMaxNames || of.values.contains(key)) {
    ScalarTotal& total = of.values[std::move(key)];
    if (finite) {
      const ScalarTotal::At at{row.value, row.step};
      if (total.count == 0 || row.value < total.min.value) total.min = at;
      if (total.count == 0 || row.value > total.max.value) total.max = at;
      total.last = at;
      ++total.count;
    } else {
      ++total.not_finite;
    }
  } else {
    ++folded;
  }
  if (row.name != "loss") return;
  if (row.mode == "EVAL") {
    if (finite) of.eval_loss.Add(row.step, row.value);
    return;
  }
  if (row.mode != "TRAIN") return;
  of.last_loss = row.value;
  if (!finite) {
    if (of.loss_not_finite++ == 0) of.loss_not_finite_step = row.step;
    return;
  }
  if (!of.first_loss) of.first_loss = row.value;
  of.loss.Add(row.step, row.value);
}

void Summary::OnSpan(const format::SpanRow& row) {
  // Those of modules are there of the steps around a finding only: no total of theirs is one.
  if (row.duration_ns < 0 || row.category == "module") return;
  std::pair key(std::string(row.category), std::string(row.name));
  if (spans.size() >= kMaxNames && !spans.contains(key)) {
    key = {"", "other names"};
    ++folded;
  }
  SpanTotal& total = spans[key];
  ++total.count;
  total.total_ns += row.duration_ns;
  total.duration_ns.Add(static_cast<double>(row.duration_ns));
  if (longest_spans.size() >= kLongest && row.duration_ns <= longest_spans.back().duration_ns)
    return;
  const LongSpan span{row.duration_ns,           row.time_ns, std::string(row.name),
                      std::string(row.category), row.step,    row.pid};
  longest_spans.insert(std::upper_bound(longest_spans.begin(), longest_spans.end(), span,
                                        [](const LongSpan& a, const LongSpan& b) {
                                          return a.duration_ns > b.duration_ns;
                                        }),
                       span);
  if (longest_spans.size() > kLongest) longest_spans.pop_back();
}

void Summary::OnEvent(const format::EventRow& row, std::uint32_t writer) {
  const auto data = ParseJson(row.data);
  const auto number = [&](const char* key, const format::Bound& bound) {
    return format::EventNumber(data, key, bound);
  };
  if (row.kind == "run.attempt_start") {
    RunPhases& attempt = attempts[row.attempt];
    if (attempt.start_ns == 0) attempt.start_ns = row.time_ns;
  } else if (row.kind == "run.attempt_end") {
    RunPhases& attempt = attempts[row.attempt];
    attempt.end_ns = row.time_ns;
    if (const auto code = number("exit_code", format::kIntBound)) {
      attempt.exit_code = static_cast<int>(*code);
    }
    if (const auto signal = number("signal", format::kIntBound)) {
      attempt.signal = static_cast<int>(*signal);
    }
    // Each machine's agent says it of its part: one that knows nothing of a stop takes none back.
    auto stopped = StoppedOf(data);
    // The machine that knows it counts.
    if (stopped && (!attempt.stopped || !stopped->perhaps)) attempt.stopped = std::move(stopped);
  } else if (row.kind == "run.first_forward") {
    RunPhases& attempt = attempts[row.attempt];
    if (attempt.first_forward_ns == 0) attempt.first_forward_ns = row.time_ns;
  } else if (row.kind == "run.last_step") {
    RunPhases& attempt = attempts[row.attempt];
    attempt.last_step_ns = std::max(attempt.last_step_ns, row.time_ns);
  } else if (row.kind == "process.start") {
    const auto kind = data.is_object() && data.contains("kind") && data["kind"].is_string()
                          ? data["kind"].get<std::string>()
                          : std::string();
    trainers += kind == "trainer" ? 1 : 0;
    workers += kind == "worker" ? 1 : 0;
    if (ProcessFacts* process = Process(writer, row.pid); process != nullptr) {
      // A pid that was given out again: what it was before is over.
      if (!process->kind.empty()) *process = {};
      process->kind = kind;
      process->rank = row.rank;
    }
  } else if (row.kind == "worker.start") {
    const auto id = number("worker_id", format::kCountBound);
    ProcessFacts* process = id ? Process(writer, row.pid) : nullptr;
    if (process != nullptr) process->worker_id = *id;
  } else if (row.kind == "gap") {
    const auto from = number("from_ns", format::kTimeBound);
    const auto to = number("to_ns", format::kTimeBound);
    if (from && to && *from <= *to && gaps.size() < 100) {
      gaps.push_back({*from, *to,
                      data.contains("cause") && data["cause"].is_string()
                          ? data["cause"].get<std::string>()
                          : std::string(row.message)});
    } else {
      ++folded;
    }
  } else if (row.kind == "recording.lost") {
    const auto since = number("since_ns", format::kTimeBound);
    if (since && lost_since_ns.size() < kMostWords) {
      lost_since_ns.push_back(*since);
    }
  } else if (row.kind == "clock.anchor") {
    if (number("step_ns", format::kTimeBound) && clock_steps.size() < kMostWords)
      clock_steps.emplace_back(row.message);
  } else if (row.kind == "probe.disabled") {
    if (disabled.size() < 16) {
      disabled.push_back(data.is_object() && data.contains("reason") && data["reason"].is_string()
                             ? data["reason"].get<std::string>()
                             : std::string(row.message));
    }
  } else if (row.kind == "agent.start") {
    // A new agent begins without any thinning, said or not; those of attempts before are gone.
    std::erase_if(governors, [&](const auto& one) {
      return one.first == writer || one.second.attempt < row.attempt;
    });
  } else if (row.kind == "plan") {
    plans.push_back({row.time_ns, std::string(row.message), writer});
    if (plans.size() > kCaptureChanges) plans.pop_front();
    // Another plan begins without any thinning; how often the machine is sampled is not of it.
    const auto before = ParseJson(std::exchange(governors[writer], {row.attempt, {}}).data);
    if (before.is_object() && before.contains("sampling_stretch") &&
        before["sampling_stretch"].is_number()) {
      governors[writer].data =
          JsonText(nlohmann::json{{"sampling_stretch", before["sampling_stretch"]}});
    }
  } else if (row.kind == "governor" || row.kind == "budget.exceeded") {
    const bool acted = row.kind == "governor";
    if (acted) ++thinned_count;
    thinned.push_back({row.time_ns, std::string(row.message), writer, acted});
    if (thinned.size() > kCaptureChanges) thinned.pop_front();
    governors[writer] = {row.attempt, std::string(row.data)};
  } else if (row.kind == "window.closed" || row.kind == "window.refused" ||
             row.kind == "window.failed") {
    windows.push_back({row.time_ns, std::string(row.message), writer});
    if (windows.size() > kCaptureChanges) windows.pop_front();
  } else if (row.kind == "framework" || row.kind == "model" || row.kind == "optimizer") {
    facts[std::string(row.kind)] = row.data;
  } else if (row.kind == "dataloader") {
    if (loaders.size() < 16) loaders.emplace_back(row.data);
  }
}

void Summary::OnMetric(const format::MetricRow& row, std::uint32_t writer) {
  if (!row.node.empty() && !writers_.contains(row.node)) {
    nodes.emplace(row.node);
    writers_.emplace(row.node, writer);
  }
  const int core = CoreOf(row.subject);
  if (core >= 0) {
    if (row.name != "cpu.idle") return;
    const std::pair key(std::string(row.node), core);
    if (cores.size() >= kMaxCores && !cores.contains(key)) {
      ++folded;
      return;
    }
    cores.try_emplace(key, 160, kCoreColumnNs).first->second.Add(row.time_ns, 100 - row.value);
    return;
  }
  if (row.subject.starts_with("proc:") && row.subject != "proc:tree") {
    OnProcessMetric(row, writer);
    return;
  }
  if (row.name == "cpu.idle" && row.subject == "node") {
    if (cpu_busy.empty()) cpu_busy = Columns(512, kCoreColumnNs);
    cpu_busy.Add(row.time_ns, 100 - row.value);
  }
  if (row.name == "proc.cpu") {
    if (tree_cpu.empty()) tree_cpu = Columns(512, kCoreColumnNs);
    tree_cpu.Add(row.time_ns, row.value);
  }
  MetricKey key{std::string(row.name), std::string(row.node), std::string(row.subject)};
  if (metrics.size() >= kMaxNames && !metrics.contains(key)) {
    ++folded;
    return;
  }
  MetricTotal& total = metrics[std::move(key)];
  total.values.Add(row.name == "cpu.idle" ? 100 - row.value : row.value);
  if (total.unit.empty()) total.unit = row.unit;
}

void Summary::OnProcessMetric(const format::MetricRow& row, std::uint32_t writer) {
  if (row.name != "proc.cpu" && row.name != "proc.rss") return;
  const std::string_view digits = std::string_view(row.subject).substr(5);
  std::int32_t pid = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (!processes.contains({writer, pid})) return;
  MetricKey key{std::string(row.name), std::string(row.node), std::string(row.subject)};
  if (process_metrics.size() >= 2 * kMaxProcesses && !process_metrics.contains(key)) return;
  MetricTotal& total = process_metrics[std::move(key)];
  total.values.Add(row.value);
  if (total.unit.empty()) total.unit = row.unit;
}

ProcessFacts* Summary::Process(std::uint32_t writer, std::int32_t pid) {
  const auto found = processes.find({writer, pid});
  if (found != processes.end()) return &found->second;
  if (pid <= 0 || processes.size() >= kMaxProcesses) return nullptr;
  return &processes[{writer, pid}];
}

std::string_view Summary::NodeOf(std::uint32_t writer) const {
  if (nodes.size() < 2) return {};
  const auto found = std::find_if(writers_.begin(), writers_.end(),
                                  [writer](const auto& one) { return one.second == writer; });
  return found == writers_.end() ? std::string_view() : found->first;
}

const ProcessFacts* Summary::ProcessAt(std::string_view node, std::int32_t pid) const {
  const auto writer = writers_.find(node);
  if (writer == writers_.end()) return nullptr;
  const auto found = processes.find({writer->second, pid});
  return found == processes.end() ? nullptr : &found->second;
}

void Summary::OnLedger(const format::LedgerRow& row) {
  // The pid too: a process that was started again counts from zero.
  std::tuple key(std::string(row.name), std::string(row.subject), row.attempt, row.pid);
  if (ledger_parts_.size() >= kMaxLedgerParts && !ledger_parts_.contains(key)) {
    ++folded;
    return;
  }
  std::uint64_t& part = ledger_parts_[std::move(key)];
  LedgerTotal& total = ledger[std::string(row.name)];
  // Cumulative: a later row replaces the earlier one of the same subject.
  if (row.value > part) {
    total.value += row.value - part;
    part = row.value;
  }
  total.unit = row.unit;
  total.loss = total.loss || row.loss;
}

StepGroup const* Summary::Train(std::int32_t rank) const {
  const auto found = steps.find({"TRAIN", rank});
  return found == steps.end() ? nullptr : &found->second;
}

std::int32_t Summary::train_rank() const {
  const auto found = steps.lower_bound({"TRAIN", std::numeric_limits<std::int32_t>::min()});
  return found == steps.end() || found->first.first != "TRAIN" ? -1 : found->first.second;
}

std::int32_t Summary::shown_rank() const {
  const std::int32_t rank = train_rank();
  return rank >= 0 || ranks.empty() ? rank : *ranks.begin();
}

const RankScalars& Summary::scalars() const {
  static const auto kNone = RankScalars();
  const auto found = scalars_.find(shown_rank());
  return found == scalars_.end() ? kNone : found->second;
}

std::int64_t Summary::train_steps() const {
  Sum sum = 0;
  for (const auto& [number, attempt] : attempts) {
    if (attempt.last_step >= 0)
      sum += attempt.last_step - std::max<std::int64_t>(0, attempt.first_step) + 1;
  }
  return sum.value();
}

std::string_view Name(RunPhase phase) {
  constexpr std::array<std::string_view, kRunPhaseCount> kNames = {
      "initialization", "training loop", "finalization", "no step seen", "between attempts"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::vector<RunInterval> Summary::run_intervals() const {
  std::vector<RunInterval> out;
  std::int64_t previous_end = 0;
  const auto add = [&](RunPhase phase, std::uint32_t attempt, std::int64_t from, std::int64_t to) {
    if (to > from) out.push_back({phase, attempt, from, to});
  };
  for (const auto& [number, a] : attempts) {
    const std::int64_t start = a.start_ns != 0 ? a.start_ns : a.first_forward_ns;
    if (start == 0) continue;
    const std::int64_t end = std::max(start, a.end_ns != 0 ? a.end_ns : last_ns);
    if (previous_end != 0) add(RunPhase::kBetween, number, previous_end, start);
    previous_end = end;
    if (a.first_forward_ns == 0) {
      add(RunPhase::kNoStep, number, start, end);
      continue;
    }
    const std::int64_t loop = std::clamp(a.first_forward_ns, start, end);
    // The last step that was seen; while the attempt goes on, the loop does.
    const std::int64_t last = a.end_ns == 0 ? end : std::clamp(a.last_step_ns, loop, end);
    add(RunPhase::kInitialization, number, start, loop);
    add(RunPhase::kLoop, number, loop, last);
    add(RunPhase::kFinalization, number, last, end);
  }
  return out;
}

RunShares Summary::run_shares() const {
  RunShares out;
  for (const RunInterval& interval : run_intervals()) {
    const double seconds = static_cast<double>(interval.end_ns - interval.start_ns) / 1e9;
    out.seconds[static_cast<std::size_t>(interval.phase)] += seconds;
    out.total += seconds;
  }
  return out;
}

double Summary::cost_share() const {
  double probe = 0;
  double all = 0;
  for (const auto& [key, group] : steps) {
    probe += static_cast<double>(group.probe_ns);
    all += static_cast<double>(group.duration_ns);
  }
  // Where cores were scarce, what the processes beside the training took from it.
  const auto taken = static_cast<double>(ledger_value("agent.taken_ns"));
  const auto of = static_cast<double>(ledger_value("agent.taken_of_ns"));
  return (all > 0 ? probe / all : 0) + (of > 0 ? taken / of : 0);
}

std::uint64_t Summary::ledger_value(std::string_view name) const {
  const auto found = ledger.find(std::string(name));
  return found == ledger.end() ? 0 : found->second.value;
}

}  // namespace telltale::analysis
