// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/decision.h"

#include <fmt/format.h>

#include <algorithm>

#include "rules/actions/kinds.h"

namespace telltale::rules {
namespace {

constexpr std::string_view kStop = "stop";

std::int64_t Ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

/// A training that was started again is stopped again.
std::int64_t CoolDownNs(const ActionSpec& spec) {
  if (spec.kind == kStop && !spec.parameters.contains("cooldown")) return 0;
  return Ns(ActionNumber(spec, "cooldown"));
}

std::int64_t GroupWaitNs(const ActionSpec& spec) { return Ns(ActionNumber(spec, "group_wait")); }

/// Whether what is decided so long after another is told with it: that one still waits.
bool Joins(const ActionSpec& spec, std::int64_t elapsed_ns) {
  return TellsOfMany(spec.kind) && elapsed_ns <= GroupWaitNs(spec);
}

bool Silenced(const ActionSpec& spec, const Finding& finding, const Moment& now) {
  if (const auto until = ParseTime(ActionText(spec, "silence_until"));
      until && now.unix_ns < *until) {
    return true;
  }
  const std::string full = finding.rule + "/" + finding.incident.subject;
  const std::vector<std::string> patterns = ActionList(spec, "silence");
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return Matches(pattern, finding.rule) || Matches(pattern, full);
  });
}

}  // namespace

bool Matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Decider::Decider(const std::vector<RuleSpec>& rules, const ActionConsent* consent) {
  for (const RuleSpec& rule : rules) {
    for (const ActionSpec& spec : rule.actions) {
      actions_[rule.name].push_back(
          {ActionId(spec), spec, consent == nullptr ? std::string_view() : consent->WhyNot(spec)});
    }
  }
}

const Decider::Action* Decider::FindAction(const std::string& rule,
                                           const std::string& action_id) const {
  const auto found = actions_.find(rule);
  if (found == actions_.end()) return nullptr;
  for (const Action& action : found->second) {
    if (action.id == action_id) return &action;
  }
  return nullptr;
}

const ActionSpec* Decider::Find(const std::string& rule, const std::string& action_id) const {
  const Action* const action = FindAction(rule, action_id);
  return action != nullptr ? &action->spec : nullptr;
}

std::string_view Decider::WhyNot(const std::string& rule, const std::string& action_id) const {
  const Action* const action = FindAction(rule, action_id);
  return action != nullptr ? action->why_not : kNotAgreed;
}

std::size_t Decider::TakeHeld(const std::string& rule, const std::string& action_id) {
  const auto found = held_.find({rule, action_id});
  if (found == held_.end()) return 0;
  const std::size_t held = found->second;
  held_.erase(found);
  return held;
}

void Decider::Note(const Action& action, const std::string& rule, const std::string& held,
                   std::int64_t run_ns) {
  const RuleAction which(rule, action.id);
  if (held == kCoolDown) {
    ++held_[which];
  } else if (held.empty() || held == kDryRun) {
    const auto [acted, fresh] = acted_ns_.try_emplace(which, run_ns);
    if (!fresh && !Joins(action.spec, run_ns - acted->second)) acted->second = run_ns;
  }
}

void Decider::Recall(const std::string& key, const std::string& rule, const std::string& action_id,
                     const std::string& held, std::int64_t run_ns) {
  decided_.insert(key);
  // The message that it became told of those that had only counted.
  if (held.empty()) held_.erase(RuleAction(rule, action_id));
  if (const ActionSpec* spec = Find(rule, action_id)) {
    Note({action_id, *spec, {}}, rule, held, run_ns);
  }
}

std::string Decider::WhyHeld(const Action& action, const Finding& finding,
                             const Moment& now) const {
  const ActionSpec& spec = action.spec;
  if (Silenced(spec, finding, now)) return "silenced";
  const ActionKind* kind = FindActionKind(spec.kind);
  if (kind != nullptr && kind->of_the_training && now.over) return "the training has ended";
  const auto acted = acted_ns_.find({finding.rule, action.id});
  if (acted != acted_ns_.end()) {
    const std::int64_t elapsed = now.run_ns - acted->second;
    if (!Joins(spec, elapsed) && elapsed < GroupWaitNs(spec) + CoolDownNs(spec)) {
      return std::string(kCoolDown);
    }
  }
  if (spec.dry_run) return std::string(kDryRun);
  return std::string(action.why_not);
}

std::vector<Decision> Decider::Decide(const std::vector<Finding>& revisions, const Moment& now) {
  std::map<std::string, const Finding*> newest;
  std::vector<std::string> order;
  for (const Finding& finding : revisions) {
    const auto [at, fresh] = newest.insert_or_assign(finding.id, &finding);
    if (fresh) order.push_back(finding.id);
  }
  std::vector<Decision> out;
  for (const std::string& id : order) {
    const Finding& finding = *newest[id];
    const auto found = actions_.find(finding.rule);
    if (found == actions_.end()) continue;
    for (const Action& action : found->second) {
      if (finding.incident.severity < action.spec.from) continue;
      const ActionKind* kind = FindActionKind(action.spec.kind);
      // What is over by itself is told of, but stops nothing.
      if (kind == nullptr || (kind->of_the_training && !finding.open && !now.over)) continue;
      std::string key = fmt::format("{}-{}", finding.id, action.id);
      if (!decided_.insert(key).second) continue;
      Decision decision;
      decision.held = WhyHeld(action, finding, now);
      Note(action, finding.rule, decision.held, now.run_ns);
      decision.key = std::move(key);
      decision.action_id = action.id;
      decision.spec = action.spec;
      decision.finding = finding;
      decision.unix_ns = now.unix_ns;
      decision.attempt = now.attempt;
      decision.due_ns = now.run_ns + GroupWaitNs(action.spec);
      out.push_back(std::move(decision));
    }
  }
  return out;
}

}  // namespace telltale::rules
