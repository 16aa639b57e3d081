// SPDX-License-Identifier: Apache-2.0
#include "telemetry/run_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <type_traits>

#include "analysis/summary.h"
#include "rules/registry.h"
#include "store/folder.h"
#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::array<std::string_view, 5> kStates = {"running", "finished", "failed", "killed",
                                                     "lost"};
/// Enough to know that they are too many.
constexpr std::size_t kMaxLeftOut = 100'000;

constexpr std::uint32_t kTables =
    store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kScalars) |
    store::MaskOf(format::TableId::kMetrics) | store::MaskOf(format::TableId::kLedger);

double Seconds(Sum ns) { return static_cast<double>(ns) / kNsPerSecond; }

/// Of each core and of each process there are too many, and those of processes come and go.
bool IsExported(std::string_view subject) {
  return !subject.starts_with("cpu:") && (!subject.starts_with("proc:") || subject == "proc:tree");
}

bool IsBrief(std::string_view subject) {
  return subject == "node" || subject == "proc:tree" || subject.starts_with("gpu:");
}

/// "data wait" as a label.
std::string PhaseLabel(std::string_view phase) {
  std::string out(phase);
  std::replace(out.begin(), out.end(), ' ', '_');
  return out;
}

}  // namespace

void RunMetrics::LeaveOut(std::string_view kind, std::string_view name, std::string_view subject) {
  if (left_out_.size() >= kMaxLeftOut) return;
  const std::hash<std::string_view> hash;
  left_out_.insert((hash(kind) * 31 + hash(name)) * 31 + hash(subject));
}

void RunMetrics::Reset() {
  watched_ = std::make_unique<rules::WatchedFindings>(path_);
  writers_.clear();
  salvage_ = {};
  judged_.reset();
  judged_attempts_ = 0;
  steps_.clear();
  scalars_.clear();
  system_.clear();
  ledger_.clear();
  node_newest_ns_.clear();
  newest_ns_ = 0;
  left_out_.clear();
  whole_ = false;
}

Status RunMetrics::Look() {
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(path_));
  const store::RunState state = reader->state();
  const store::RunInfo& info = reader->info();
  // Recorded anew in the same place.
  if (!opened_ || info.created_ns != info_.created_ns) Reset();
  info_ = info;
  state_ = state;
  opened_ = true;
  return {};
}

void RunMetrics::FindWriters() {
  for (const std::string& name : store::ListWriters(path_)) {
    const bool known = std::any_of(writers_.begin(), writers_.end(),
                                   [&](const auto& one) { return one->name() == name; });
    if (known || name.starts_with("watch")) continue;
    writers_.push_back(std::make_unique<store::WriterFollower>(path_ / name, name, kTables,
                                                               /*final=*/false, &salvage_));
  }
}

Result<bool> RunMetrics::Advance(Deadline deadline) {
  TELLTALE_RETURN_IF_ERROR(Look());
  watched_->Advance(over());
  FindWriters();
  for (const auto& writer : writers_) {
    while (true) {
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = writer->Advance(&chunk);
      // What cannot be read is left out, as the report does; `verify` says what it is.
      if (!progress.ok() || !*progress) break;
      if (chunk != nullptr) Take(chunk->rows);
      if (std::chrono::steady_clock::now() >= deadline) return true;
    }
  }
  if (!over()) {
    judged_.reset();
  } else if (options_.replay && !watched_->log().CameToItsEnd(info_) &&
             (!judged_ || judged_attempts_ != info_.attempts.size())) {
    TELLTALE_RETURN_IF_ERROR(Judge());
  }
  whole_ = true;
  return false;
}

Status RunMetrics::Judge() {
  TELLTALE_ASSIGN_OR_RETURN(rules::Replay replay, rules::ReplayRun(path_));
  judged_ = std::make_unique<rules::Replay>(std::move(replay));
  judged_attempts_ = info_.attempts.size();
  return {};
}

void RunMetrics::Take(const format::Rows& rows) {
  for (const format::StepRow& row : rows.steps) OnStep(row);
  for (const format::ScalarRow& row : rows.scalars) OnScalar(row);
  for (const format::MetricRow& row : rows.metrics) OnMetric(row);
  for (const format::LedgerRow& row : rows.ledger) OnLedger(row);
  format::ForEachTable(rows, [this](const auto& table) {
    if (!table.empty()) newest_ns_ = std::max(newest_ns_, table.back().ord_ns);
  });
}

void RunMetrics::OnStep(const format::StepRow& row) {
  if (row.duration_ns < 0 || row.time_ns < 0) return;
  if (row.rank < 0 || row.rank >= kMaxRanks) {
    LeaveOut("step", row.mode, fmt::format("{}", row.rank));
    return;
  }
  steps_[{std::string(row.mode), row.rank}].Add(row);
}

void RunMetrics::OnScalar(const format::ScalarRow& row) {
  ScalarKey key(row.name, row.mode, row.rank);
  if (!scalars_.contains(key) &&
      (scalars_.size() >= kMaxScalars || row.rank < 0 || row.rank >= kMaxRanks)) {
    LeaveOut("scalar", row.name, fmt::format("{} {}", row.mode, row.rank));
    return;
  }
  Value& value = scalars_[std::move(key)];
  if (row.time_ns < value.time_ns) return;
  value.value = row.value;
  value.time_ns = row.time_ns;
}

void RunMetrics::OnMetric(const format::MetricRow& row) {
  if (!IsExported(row.subject)) return;
  SystemKey key(row.name, row.node, row.subject);
  if (!system_.contains(key) && system_.size() >= kMaxSystem) {
    LeaveOut("system", row.name, row.subject);
    return;
  }
  Value& value = system_[std::move(key)];
  if (row.time_ns < value.time_ns) return;
  value.value = row.value;
  value.time_ns = row.time_ns;
  if (value.unit != row.unit) value.unit = row.unit;
  std::int64_t& newest = node_newest_ns_[std::string(row.node)];
  newest = std::max(newest, row.time_ns);
}

void RunMetrics::OnLedger(const format::LedgerRow& row) {
  if (!row.loss && row.name != "agent.cpu_ns") return;
  LedgerKey key(row.name, row.subject, row.attempt, row.pid);
  if (!ledger_.contains(key) && ledger_.size() >= kMaxLedgerParts) {
    LeaveOut("ledger", row.name, row.subject);
    return;
  }
  LedgerPart& part = ledger_[std::move(key)];
  part.value = std::max(part.value, row.value);
  part.unit = row.unit;
  part.loss = row.loss;
}

void RunMetrics::AddTo(std::int64_t now_ns, MetricSet* out) const {
  if (!opened_) return;
  std::int64_t start = info_.created_ns;
  if (!info_.attempts.empty() && info_.attempts.front().start_ns > 0) {
    start = info_.attempts.front().start_ns;
  }
  std::int64_t now = now_ns;
  if (over()) {
    // What a run that is over was like when it ended.
    now = newest_ns_;
    if (!info_.attempts.empty()) now = std::max(now, info_.attempts.back().end_ns);
    if (now == 0) now = now_ns;
  }
  out->Begin(id_.empty() ? info_.id : id_, start, now);
  AddRun(out);
  if (!whole_) return;
  if (newest_ns_ > 0) out->Add(kLastRecord, {}, Seconds(newest_ns_));
  AddSteps(now, out);
  for (const auto& [key, value] : scalars_) {
    const auto& [name, mode, rank] = key;
    const std::string rank_text = fmt::format("{}", rank);
    out->Add(kScalar, {{"name", name}, {"mode", mode}, {"rank", rank_text}}, value.value);
    if (name == "loss") out->Add(kLoss, {{"mode", mode}, {"rank", rank_text}}, value.value);
  }
  AddSystem(out);
  AddLedger(out);
  AddRules(out);
  out->Add(kLeftOut, {}, static_cast<double>(left_out_.size()));
}

void RunMetrics::AddRun(MetricSet* out) const {
  out->Add(kRunInfo,
           {{"name", info_.name}, {"host", info_.host}, {"version", info_.telltale_version}}, 1);
  for (const std::string_view state : kStates) {
    out->Add(kRunState, {{"state", state}}, state_.state == state ? 1 : 0);
  }
  out->Add(kRunStart, {}, Seconds(info_.created_ns));
  out->Add(kRunAttempts, {}, static_cast<double>(info_.attempts.size()));
}

void RunMetrics::AddSteps(std::int64_t now_ns, MetricSet* out) const {
  for (const auto& [key, totals] : steps_) {
    const auto& [mode, rank] = key;
    const std::string rank_text = fmt::format("{}", rank);
    const Labels labels = {{"mode", mode}, {"rank", rank_text}};
    const StepTotals::Sums& all = totals.all();
    out->Add(kSteps, labels, static_cast<double>(all.steps));
    out->Add(kStepTime, labels, Seconds(all.duration_ns));
    if (all.samples > 0) out->Add(kSamples, labels, static_cast<double>(all.samples));
    out->Add(kSkipped, labels, static_cast<double>(totals.skipped()));
    out->Add(kProbeTime, labels, Seconds(totals.probe_ns()));
    out->Add(kStep, labels, static_cast<double>(totals.newest_step()));
    const StepTotals::Recent recent = totals.At(now_ns);
    const auto count = static_cast<double>(recent.mean_of.steps);
    out->Add(kStepSeconds, labels, Seconds(recent.mean_of.duration_ns) / count);
    out->Add(kStepRate, labels, recent.steps_per_s);
    if (all.samples > 0) out->Add(kSampleRate, labels, recent.samples_per_s);
    out->Add(kStepAge, labels, recent.age_s);
    for (std::size_t i = 0; i < analysis::kPhases.size(); ++i) {
      const std::string phase = PhaseLabel(analysis::kPhases[i]);
      const Labels with_phase = {{"mode", mode}, {"rank", rank_text}, {"phase", phase}};
      out->Add(kPhaseTime, with_phase, Seconds(all.phase_ns[i]));
      out->Add(kPhaseSeconds, with_phase, Seconds(recent.mean_of.phase_ns[i]) / count);
    }
  }
}

void RunMetrics::AddSystem(MetricSet* out) const {
  for (const auto& [key, value] : system_) {
    const auto& [name, node, subject] = key;
    const auto newest = node_newest_ns_.find(node);
    if (newest != node_newest_ns_.end() && newest->second - value.time_ns > kGoneNs) continue;
    const SystemFamily family = SystemFamilyOf(name, value.unit);
    out->Add(family.desc(IsBrief(subject)), {{"node", node}, {"subject", subject}}, value.value);
  }
}

void RunMetrics::AddLedger(MetricSet* out) const {
  std::map<std::pair<std::string, std::string>, double> losses;
  double agent_ns = 0;
  for (const auto& [key, part] : ledger_) {
    const std::string& name = std::get<0>(key);
    if (part.loss) {
      losses[{name, part.unit}] += static_cast<double>(part.value);
    } else {
      agent_ns += static_cast<double>(part.value);
    }
  }
  for (const auto& [key, value] : losses) {
    out->Add(kLedgerLoss, {{"name", key.first}, {"unit", key.second}}, value);
  }
  out->Add(kOwnCpu, {{"process", "agent"}}, agent_ns / kNsPerSecond);
  out->Add(kOwnCpu, {{"process", "watch"}}, static_cast<double>(watched_->cpu_ns()) / kNsPerSecond);
}

void RunMetrics::AddRules(MetricSet* out) const {
  const std::vector<rules::RuleState> states = judged_ ? judged_->rules : watched_->rules();
  for (const rules::RuleState& state : states) {
    for (int i = 0; i <= static_cast<int>(rules::RuleStatus::kError); ++i) {
      const auto status = static_cast<rules::RuleStatus>(i);
      const bool is = state.status == status;
      const bool broken =
          status == rules::RuleStatus::kError || status == rules::RuleStatus::kSuspended;
      // Whether it finds something always, that it does not work where it is so.
      const bool brief = status == rules::RuleStatus::kIssuesFound || (broken && is);
      out->Add(kRuleState, {{"rule", state.name}, {"status", rules::Name(status)}}, is ? 1 : 0,
               brief);
    }
  }
  AddFindings(states, out);
}

void RunMetrics::AddFindings(const std::vector<rules::RuleState>& states, MetricSet* out) const {
  constexpr std::array kSeverities = {rules::Severity::kInfo, rules::Severity::kLow,
                                      rules::Severity::kMedium, rules::Severity::kHigh};
  const std::vector<rules::Finding> findings = judged_ ? judged_->findings : watched_->findings();
  std::map<std::pair<rules::Severity, bool>, int> counts;
  struct Shown {
    bool open = false;
    bool wrong = false;
    double cost_s = 0;
  };
  // Ranked: those that are left out matter least.
  std::map<std::tuple<std::string, std::string, rules::Severity>, Shown> shown;
  std::size_t beyond = 0;
  for (const rules::Finding& finding : findings) {
    const rules::Incident& incident = finding.incident;
    ++counts[{incident.severity, finding.open}];
    std::tuple key(finding.rule, incident.subject, incident.severity);
    if (!shown.contains(key) && shown.size() >= kMaxFindings) {
      ++beyond;
      continue;
    }
    Shown& one = shown[std::move(key)];
    one.open = one.open || finding.open;
    one.wrong = one.wrong || finding.wrong_result;
    one.cost_s += incident.cost_seconds;
  }
  for (const rules::Severity severity : kSeverities) {
    for (const bool open : {true, false}) {
      const auto found = counts.find({severity, open});
      out->Add(kFindings,
               {{"severity", rules::Name(severity)}, {"state", open ? "open" : "closed"}},
               found == counts.end() ? 0 : found->second, open);
    }
  }
  std::map<std::pair<std::string, std::string>, double> costs;
  for (const auto& [key, one] : shown) {
    const auto& [rule, subject, severity] = key;
    // What the rule is, whatever the user called it.
    std::string_view kind = rules::FindRule(rule) != nullptr ? std::string_view(rule) : "custom";
    for (const rules::RuleState& state : states) {
      if (state.name == rule && !state.rule.empty()) kind = state.rule;
    }
    out->Add(kFinding,
             {{"rule", rule},
              {"kind", kind},
              {"subject", subject},
              {"severity", rules::Name(severity)},
              {"wrong_result", one.wrong ? "true" : "false"}},
             one.open ? 1 : 0);
    costs[{rule, subject}] += one.cost_s;
  }
  for (const auto& [key, cost] : costs) {
    out->Add(kFindingCost, {{"rule", key.first}, {"subject", key.second}}, cost);
  }
  if (beyond > 0) out->Add(kLeftOut, {{"family", "telltale_finding"}}, static_cast<double>(beyond));
}

}  // namespace telltale::telemetry
