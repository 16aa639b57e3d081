// SPDX-License-Identifier: Apache-2.0
#include "rules/advice/advise.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/json.h"
#include "rules/groups.h"
#include "rules/incident_id.h"
#include "rules/replay.h"

namespace telltale::rules::advice {

namespace {

constexpr std::array kChecks = {
#define TELLTALE_CHECK(name) &k##name,
#include "rules/advice/checks.inc"
#undef TELLTALE_CHECK
};

/// Of the run's own rules, with its parameters, those about speed that read what is recorded in any
/// case and nothing of tensors.
Result<RuleSet> RulesAboutSpeed(const std::filesystem::path& run) {
  constexpr std::uint32_t kMay =
      store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
      store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kMetrics);
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  auto own = RuleSetFromJson(reader->info().rules);
  // A set that cannot be read must not keep the run from being judged.
  auto specs = own.ok() ? Resolve(*own) : Resolve(RuleSet());
  if (!specs.ok()) specs = Resolve(RuleSet());
  if (!specs.ok()) return specs.status();
  RuleSet set;
  set.defaults = false;
  for (RuleSpec& spec : *specs) {
    if (spec.source != RuleSource::kBuiltIn) continue;
    const RuleEntry* entry = FindRule(spec.rule);
    if (entry == nullptr || entry->desc->wrong_result) continue;
    if ((entry->desc->table_mask & ~kMay) != 0) continue;
    spec.actions.clear();
    set.rules.push_back(std::move(spec));
  }
  return set;
}

/// Where a rule has said it of the same rank already, the check's figures become its evidence:
/// nothing is told, or counted, twice.
void Join(std::vector<Finding> found, std::vector<Finding>* all) {
  for (Finding& one : found) {
    const Check* check = FindCheck(one.rule);
    Finding* same = nullptr;
    for (Finding& other : *all) {
      if (check->rule.empty() || other.rule != check->rule) continue;
      if (other.incident.subject == one.incident.subject) same = &other;
    }
    if (same == nullptr) {
      all->push_back(std::move(one));
      continue;
    }
    auto evidence = ParseOrderedJson(same->incident.evidence);
    if (!evidence.is_object()) evidence = nlohmann::ordered_json::object();
    auto figures = ParseOrderedJson(one.incident.evidence);
    figures["check"] = one.rule;
    evidence["trace"] = std::move(figures);
    same->incident.evidence = JsonText(evidence);
    same->incident.severity = std::max(same->incident.severity, one.incident.severity);
  }
}

void NoteLeftOut(Advice* advice) {
  if (advice->findings_left_out == 0) return;
  advice->notes.push_back(
      fmt::format("{} more findings are left out; the first of each check are here.",
                  advice->findings_left_out));
}

}  // namespace

std::string TimeWords(Sum ns) {
  const auto value = static_cast<double>(ns);
  if (value >= 1e9) return Plain(value / 1e9) + " s";
  if (value >= 1e6) return Plain(value / 1e6) + " ms";
  return Plain(value / 1e3) + " µs";
}

Severity SeverityOf(double share, double much) {
  if (share >= std::max(much, 0.2)) return Severity::kHigh;
  return share >= much ? Severity::kMedium : Severity::kLow;
}

bool HasAny(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

void Findings::Add(const RankFacts& rank, Advised advised) {
  Incident incident;
  incident.subject = fmt::format("rank {}", rank.rank);
  if (!advised.about.empty()) incident.subject += ", " + advised.about;
  if (!rank.steps.empty()) {
    incident.first_step = rank.steps.front();
    incident.last_step = rank.steps.back();
  }
  incident.start_ns = rank.begin_ns;
  incident.end_ns = rank.end_ns;
  Put(std::move(incident), std::move(advised));
}

void Findings::Add(std::string subject, Advised advised) {
  Incident incident;
  incident.subject = std::move(subject);
  Put(std::move(incident), std::move(advised));
}

void Findings::Put(Incident incident, Advised advised) {
  incident.severity = advised.severity;
  incident.message = std::move(advised.title);
  if (advised.share > 0) advised.evidence["share"] = Rounded(advised.share);
  if (!advised.assumption.empty()) advised.evidence["assumption"] = advised.assumption;
  incident.evidence = JsonText(advised.evidence);
  incident.cause = std::move(advised.cause);
  incident.cost_seconds = advised.cost_seconds;
  incident.advice = std::move(advised.advice);
  incident.confidence = advised.confidence;
  Finding& finding = out_.emplace_back();
  finding.id = IncidentId(check_, incident);
  finding.rule = std::string(check_);
  finding.open = false;
  // A trace ends, and with it what it shows: nobody saw that it was over.
  finding.until_end = true;
  finding.incident = std::move(incident);
}

std::span<const Check* const> Checks() { return kChecks; }

const Check* FindCheck(std::string_view name) {
  const auto found = std::find_if(kChecks.begin(), kChecks.end(),
                                  [&](const Check* one) { return one->name == name; });
  return found == kChecks.end() ? nullptr : *found;
}

Advice AdviseOn(const RunFacts& facts, const std::vector<std::string>& checks) {
  Advice out;
  out.ranks = facts.ranks.size();
  for (const RankFacts& rank : facts.ranks) {
    if (rank.wall_ns <= 0 || Seconds(rank.wall_ns) <= out.wall_seconds) continue;
    out.wall_seconds = Seconds(rank.wall_ns);
    out.steps = rank.steps.size();
  }
  for (const Check* check : kChecks) {
    if (!checks.empty() && std::find(checks.begin(), checks.end(), check->name) == checks.end()) {
      continue;
    }
    Findings findings(check->name);
    RuleState& state = out.checks.emplace_back();
    state.name = std::string(check->name);
    state.status = check->look(facts, &findings);
    state.incidents = static_cast<std::uint32_t>(findings.size());
    if (state.incidents > 0) state.status = RuleStatus::kIssuesFound;
    if (state.status == RuleStatus::kNoData || state.status == RuleStatus::kNotApplicable) {
      state.missing = "the trace has none of what it looks at";
    }
    for (Finding& one : findings.Take()) out.findings.push_back(std::move(one));
  }
  out.notes = facts.notes;
  if (facts.has_trace && out.steps == 0) {
    out.notes.emplace_back(
        "The trace holds neither marks of steps nor operators: record with profiler.step() once a "
        "step.");
  }
  out.salvage = facts.salvage;
  out.findings = Ranked(std::move(out.findings), &out.findings_left_out);
  return out;
}

Result<Advice> Advise(const std::filesystem::path& run, const AdviseOptions& options) {
  for (const std::string& name : options.checks) {
    if (FindCheck(name) != nullptr) continue;
    std::string known;
    for (const Check* check : kChecks) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", check->name);
    }
    return Status(Code::kUsage, fmt::format("'{}' is no check: there are {}", name, known));
  }
  TELLTALE_ASSIGN_OR_RETURN(const RunFacts facts, RunFactsOf(run, options.ranks));
  Advice out = AdviseOn(facts, options.checks);
  if (!options.rules) {
    NoteLeftOut(&out);
    return out;
  }
  ReplayOptions replay_options;
  TELLTALE_ASSIGN_OR_RETURN(replay_options.rules, RulesAboutSpeed(run));
  TELLTALE_ASSIGN_OR_RETURN(Replay replay, ReplayRun(run, replay_options));
  std::vector<Finding> all = std::move(replay.findings);
  Join(std::exchange(out.findings, {}), &all);
  std::size_t left_out = 0;
  out.findings = Ranked(std::move(all), &left_out);
  out.findings_left_out += replay.findings_left_out + left_out;
  NoteLeftOut(&out);
  for (RuleState& state : replay.rules) out.checks.push_back(std::move(state));
  if (!facts.has_trace) out.salvage = std::move(replay.salvage);
  return out;
}

void AddAdvice(Advice advice, Replay* replay) {
  std::vector<Finding> all = std::move(replay->findings);
  Join(std::move(advice.findings), &all);
  std::size_t left_out = 0;
  replay->findings = Ranked(std::move(all), &left_out);
  replay->findings_left_out += advice.findings_left_out + left_out;
  for (RuleState& state : advice.checks) replay->rules.push_back(std::move(state));
}

Status AddAdvice(const std::filesystem::path& run, Replay* replay) {
  TELLTALE_ASSIGN_OR_RETURN(const RunFacts facts, RunFactsOf(run, {}));
  if (!facts.has_trace) return {};
  AddAdvice(AdviseOn(facts), replay);
  return {};
}

}  // namespace telltale::rules::advice
