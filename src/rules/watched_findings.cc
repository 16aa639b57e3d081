// SPDX-License-Identifier: Apache-2.0
#include "rules/watched_findings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules {
namespace {

rules::Severity RowSeverity(std::string_view name) {
  for (const auto severity :
       {rules::Severity::kInfo, rules::Severity::kMedium, rules::Severity::kHigh}) {
    if (rules::Name(severity) == name) return severity;
  }
  return rules::Severity::kLow;
}

rules::RuleStatus StatusOf(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(rules::RuleStatus::kError); ++i) {
    const auto status = static_cast<rules::RuleStatus>(i);
    if (rules::Name(status) == name) return status;
  }
  return rules::RuleStatus::kInProgress;
}

}  // namespace

bool WatchedFindings::Advance(bool final) {
  return log_.Advance(final, [this](const format::Rows& rows) {
    for (const format::FindingRow& row : rows.findings) OnFinding(row);
    for (const format::EventRow& row : rows.events) OnEvent(row);
    for (const format::LedgerRow& row : rows.ledger) OnLedger(row);
  });
}

void WatchedFindings::OnFinding(const format::FindingRow& row) {
  rules::Finding& finding = findings_[std::string(row.incident)];
  if (row.revision < finding.revision) return;
  finding.id = row.incident;
  finding.revision = row.revision;
  finding.rule = row.rule;
  finding.open = row.state == "open";
  rules::Incident& incident = finding.incident;
  incident.subject = row.subject;
  incident.severity = RowSeverity(row.severity);
  incident.first_step = row.first_step;
  incident.last_step = row.last_step;
  incident.start_ns = row.start_ns;
  incident.end_ns = row.end_ns;
  incident.message = row.message;
  incident.evidence = row.evidence;
  incident.cause = row.cause;
  incident.cost_seconds = row.cost_seconds;
  incident.advice = row.advice;
  incident.confidence = row.confidence;
}

void WatchedFindings::OnEvent(const format::EventRow& row) {
  if (row.kind == "rule.status") OnStatus(row);
  if (row.kind == "rules.ended") OnRunEnd(row);
  if (ActionLog::IsOurs(row.kind)) actions_.OnEvent(row.kind, row.data);
}

/// Each watcher of a run says it of all findings, so the newest counts.
void WatchedFindings::OnRunEnd(const format::EventRow& row) {
  const auto data = ParseJson(row.data);
  const auto incidents = data.find("until_end");
  until_end_.clear();
  if (incidents == data.end() || !incidents->is_array()) return;
  for (const auto& incident : *incidents) {
    if (incident.is_string()) until_end_.insert(incident.get<std::string>());
  }
}

void WatchedFindings::OnStatus(const format::EventRow& row) {
  const auto data = ParseJson(row.data);
  if (!data.is_object()) return;
  const auto text = [&](const char* key) {
    const auto found = data.find(key);
    return found != data.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  rules::RuleState& rule = rules_[text("rule")];
  rule.name = text("rule");
  rule.status = StatusOf(text("status"));
  rule.error = text("error");
  rule.partial = text("partial");
  rule.missing = text("missing");
  rule.rule = text("of");
  const auto wrong = data.find("wrong_result");
  rule.wrong_result = wrong != data.end() && wrong->is_boolean() && wrong->get<bool>();
  if (const auto found = data.find("summary"); found != data.end() && found->is_object()) {
    rule.summary = found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  if (const auto found = data.find("incidents");
      found != data.end() && found->is_number_unsigned()) {
    rule.incidents = found->get<std::uint32_t>();
  }
}

void WatchedFindings::OnLedger(const format::LedgerRow& row) {
  constexpr std::string_view kRule = "rule:";
  if (row.name == "watch.cpu_ns") {
    cpu_ns_[row.pid] = row.value;
  } else if (row.name == "rule.records_read" && row.subject.starts_with(kRule)) {
    // Each watcher of a run reads it from its begin, so the newest has them all.
    records_[std::string(row.subject.substr(kRule.size()))] = row.value;
  }
}

std::vector<rules::Finding> WatchedFindings::findings(std::size_t* left_out) const {
  std::vector<rules::Finding> out;
  for (const auto& [id, finding] : findings_) {
    out.push_back(finding);
    // A further attempt may have opened it again.
    out.back().until_end = !finding.open && until_end_.contains(id);
    out.back().wrong_result = IsWrongResult(finding.rule);
    if (const RuleEntry* entry = EntryOf(finding.rule)) out.back().standing = entry->desc->standing;
  }
  return rules::Ranked(std::move(out), left_out);
}

/// Findings have the name that the user gave the rule; their rows do not say what it is.
bool WatchedFindings::IsWrongResult(const std::string& name) const {
  const auto state = rules_.find(name);
  if (state != rules_.end() && state->second.wrong_result) return true;  // One of the user's own.
  const RuleEntry* const entry = EntryOf(name);
  return entry != nullptr && entry->desc->wrong_result;
}

const RuleEntry* WatchedFindings::EntryOf(const std::string& name) const {
  const auto state = rules_.find(name);
  const bool named = state != rules_.end() && !state->second.rule.empty();
  return FindRule(named ? state->second.rule : name);
}

std::vector<rules::RuleState> WatchedFindings::rules() const {
  // The event of a status has them as they were when it changed.
  std::map<std::string_view, std::uint32_t> incidents;
  for (const auto& [id, finding] : findings_) ++incidents[finding.rule];
  std::vector<rules::RuleState> out;
  for (const auto& [name, state] : rules_) {
    rules::RuleState& rule = out.emplace_back(state);
    if (const auto found = incidents.find(name); found != incidents.end()) {
      rule.incidents = std::max(rule.incidents, found->second);
    }
    if (const auto found = records_.find(name); found != records_.end()) {
      rule.records = found->second;
    }
  }
  return out;
}

std::uint64_t WatchedFindings::cpu_ns() const {
  std::uint64_t sum = 0;
  for (const auto& [pid, ns] : cpu_ns_) sum += ns;
  return sum;
}

}  // namespace telltale::rules
