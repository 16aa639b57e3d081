// SPDX-License-Identifier: Apache-2.0
// Incidents: opened, updated, closed; numbered revisions; nothing said twice.
#include "rules/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <tuple>

namespace telltale::rules {
namespace {

std::uint64_t Fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ULL;
  return hash;
}

std::string IncidentId(std::string_view rule, const Incident& incident) {
  return fmt::format("{:016x}", Fnv1a(fmt::format("{}\x1f{}\x1f{}\x1f{}", rule, incident.subject,
                                                  incident.first_step, incident.start_ns)));
}

/// Words changed: worth a revision at once.
bool SaysSomethingNew(const Incident& before, const Incident& now) {
  return std::tie(before.severity, before.cause, before.first_step, before.start_ns) !=
         std::tie(now.severity, now.cause, now.first_step, now.start_ns);
}

bool NumbersChanged(const Incident& before, const Incident& now) {
  return std::tie(before.last_step, before.end_ns, before.cost_seconds, before.message,
                  before.evidence, before.advice) != std::tie(now.last_step, now.end_ns,
                                                              now.cost_seconds, now.message,
                                                              now.evidence, now.advice);
}

}  // namespace

std::string_view Name(RuleStatus status) {
  constexpr std::array<std::string_view, 8> kNames = {
      "NoIssuesFound", "IssuesFound", "InProgress", "NoData",
      "NotApplicable", "Suspended",   "Stopped",    "Error"};
  return kNames[static_cast<std::size_t>(status)];
}

struct Engine::Slot {
  const RuleDesc* desc = nullptr;
  std::unique_ptr<Rule> rule;
  std::uint64_t records = 0;
  std::uint32_t incidents = 0;
  bool failed = false;
  std::string error;
};

class Engine::SlotReporter final : public Reporter {
 public:
  SlotReporter(Engine* engine, Slot* slot) : engine_(engine), slot_(slot) {}
  void Report(const Incident& incident) override { engine_->Report(slot_, incident); }
  void Close(const Incident& incident) override { engine_->Close(slot_, incident, false); }
  void Recover(const Incident& incident) override { engine_->Close(slot_, incident, true); }

 private:
  Engine* engine_;
  Slot* slot_;
};

Engine::Engine() {
  for (const RuleEntry& entry : Registry()) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->desc = entry.desc;
    slots_.back()->rule = entry.make(Parameters(*entry.desc));
  }
}

Engine::Engine(std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules) {
  for (auto& [desc, rule] : rules) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->desc = desc;
    slots_.back()->rule = std::move(rule);
  }
}

Engine::~Engine() = default;

/// A rule that throws is out, with its words; the others go on.
template <class F>
void Engine::Guard(Slot* slot, F&& body) {
  if (slot->failed) return;
  try {
    SlotReporter reporter(this, slot);
    body(&reporter);
  } catch (const std::exception& error) {
    slot->failed = true;
    slot->error = error.what();
  }
}

void Engine::NoteLives(const store::OrderedRecord& record) {
  const auto* event = record.As<format::EventRow>();
  process_ends_ = event != nullptr && event->kind == "process.exit";
  const auto* step = record.As<format::StepRow>();
  if (step == nullptr || step->attempt <= attempt_) return;
  // What was before a restart says nothing about now.
  attempt_ = step->attempt;
  lasted_.clear();
}

void Engine::Feed(const store::OrderedRecord& record) {
  now_ns_ = std::max(now_ns_, record.ord_ns);
  NoteLives(record);
  for (auto& slot : slots_) {
    if ((slot->desc->table_mask & store::MaskOf(record.table)) == 0 || slot->failed) continue;
    ++slot->records;
    Guard(slot.get(), [&](Reporter* reporter) { slot->rule->OnRecord(record, reporter); });
  }
}

void Engine::End() {
  if (ended_) return;
  ending_ = true;
  for (auto& slot : slots_) {
    Guard(slot.get(), [&](Reporter* reporter) { slot->rule->OnEnd(reporter); });
  }
  // What a rule left open (or a failed one could not close) ends with the run.
  const auto left = open_;
  for (const auto& [key, index] : left) {
    findings_[index].open = false;
    findings_[index].until_end = true;
    Emit(index);
  }
  for (const auto& [key, index] : left) open_.erase(key);
  for (const std::size_t index : lasted_) findings_[index].until_end = true;
  ended_ = true;
}

void Engine::Report(Slot* slot, const Incident& incident) {
  const std::pair<std::string, std::string> key(slot->desc->name, incident.subject);
  const auto found = open_.find(key);
  if (found == open_.end()) {
    Finding finding;
    finding.id = IncidentId(slot->desc->name, incident);
    finding.rule = slot->desc->name;
    finding.incident = incident;
    findings_.push_back(std::move(finding));
    emitted_ns_.push_back(0);
    open_.emplace(key, findings_.size() - 1);
    ++slot->incidents;
    Emit(findings_.size() - 1);
    return;
  }
  Finding& finding = findings_[found->second];
  const bool news = SaysSomethingNew(finding.incident, incident);
  const bool numbers = NumbersChanged(finding.incident, incident);
  finding.incident = incident;
  if (news || (numbers && now_ns_ - emitted_ns_[found->second] >= kUpdateIntervalNs)) {
    Emit(found->second);
  }
}

void Engine::Close(Slot* slot, const Incident& incident, bool over) {
  const std::pair<std::string, std::string> key(slot->desc->name, incident.subject);
  const auto found = open_.find(key);
  if (found == open_.end()) return;
  Finding& finding = findings_[found->second];
  finding.incident = incident;
  finding.open = false;
  finding.until_end = ending_ && !over;
  const std::size_t index = found->second;
  if (process_ends_ && !over) lasted_.push_back(index);
  open_.erase(found);
  Emit(index);
}

void Engine::Emit(std::size_t index) {
  Finding& finding = findings_[index];
  ++finding.revision;
  emitted_ns_[index] = now_ns_;
  revisions_.push_back(finding);
}

std::vector<Finding> Engine::TakeRevisions() { return std::exchange(revisions_, {}); }

std::vector<RuleState> Engine::rule_states() const {
  std::vector<RuleState> out;
  for (const auto& slot : slots_) {
    RuleState state{std::string(slot->desc->name), RuleStatus::kInProgress, slot->records,
                    slot->incidents, slot->error};
    if (slot->failed) {
      state.status = RuleStatus::kError;
    } else if (slot->incidents > 0) {
      state.status = RuleStatus::kIssuesFound;
    } else if (!slot->rule->has_data()) {
      state.status = RuleStatus::kNoData;
    } else if (ended_) {
      state.status = RuleStatus::kNoIssuesFound;
    }
    out.push_back(std::move(state));
  }
  return out;
}

std::uint32_t Engine::table_mask() const {
  std::uint32_t mask = 0;
  for (const auto& slot : slots_) mask |= slot->desc->table_mask;
  return mask;
}

format::FindingRow ToRow(const Finding& finding) {
  const Incident& incident = finding.incident;
  format::FindingRow row;
  row.time_ns = incident.start_ns;
  row.ord_ns = incident.end_ns;
  row.incident = finding.id;
  row.revision = finding.revision;
  row.rule = finding.rule;
  row.severity = Name(incident.severity);
  row.state = finding.open ? "open" : "closed";
  row.subject = incident.subject;
  row.first_step = incident.first_step;
  row.last_step = incident.last_step;
  row.start_ns = incident.start_ns;
  row.end_ns = incident.end_ns;
  row.message = incident.message;
  row.evidence = incident.evidence;
  row.cause = incident.cause;
  row.cost_seconds = incident.cost_seconds;
  row.advice = incident.advice;
  row.confidence = incident.confidence;
  return row;
}

std::vector<Finding> Ranked(std::vector<Finding> findings) {
  const auto key = [](const Finding& f) {
    const RuleEntry* entry = FindRule(f.rule);
    const bool wrong = entry != nullptr && entry->desc->wrong_result;
    return std::tuple(!(f.open || f.until_end), !wrong, -f.incident.cost_seconds,
                      f.incident.start_ns, f.id);
  };
  std::stable_sort(findings.begin(), findings.end(),
                   [&](const Finding& a, const Finding& b) { return key(a) < key(b); });
  return findings;
}

}  // namespace telltale::rules
