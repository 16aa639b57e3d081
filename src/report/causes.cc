// SPDX-License-Identifier: Apache-2.0
#include "report/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "report/text.h"
#include "rules/groups.h"

namespace telltale::report {
namespace {

using Json = nlohmann::ordered_json;
using rules::Theme;

constexpr std::string_view kNotFound = "cause not found";
/// Candidates that a sentence names.
constexpr std::size_t kNamed = 3;
/// Findings of one rule that a sentence names by their subject.
constexpr std::size_t kSubjects = 3;

/// Time in which speed was not normal; what makes a result wrong leaves steps as fast as they are.
std::vector<analysis::Window> Windows(const RunData& data,
                                      const std::vector<std::size_t>& findings) {
  std::vector<analysis::Window> out;
  for (const std::size_t index : findings) {
    const rules::Finding& f = data.replay.findings[index];
    if (!f.wrong_result && f.incident.end_ns > f.incident.start_ns) {
      out.push_back({f.incident.start_ns, f.incident.end_ns});
    }
  }
  return out;
}

/// Of the other groups: windows in which time was lost in every step.
std::vector<analysis::Window> OtherTrouble(const RunData& data,
                                           const std::vector<std::vector<std::size_t>>& groups,
                                           std::size_t which) {
  std::vector<std::size_t> findings;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (i == which) continue;
    for (const std::size_t index : groups[i]) {
      const rules::Finding& f = data.replay.findings[index];
      const bool pauses = f.standing.theme == Theme::kPauses;
      if (!pauses && f.incident.cost_seconds > 0) findings.push_back(index);
    }
  }
  return Windows(data, findings);
}

void Compare(const RunData& data, const std::vector<std::vector<std::size_t>>& groups,
             std::size_t which, Explanation* out) {
  const rules::Finding& first = data.replay.findings[out->findings.front()];
  const std::vector<analysis::Window> during = Windows(data, out->findings);
  if (first.wrong_result || during.empty()) return;
  const Theme theme = first.standing.theme;
  // Outliers are single steps: they are not in a window, they are between others in it.
  if (theme == Theme::kPauses) {
    out->contrast = data.trail.SlowSteps();
    out->basis = Basis::kSlowSteps;
  } else {
    out->contrast = data.trail.Between(during, OtherTrouble(data, groups, which));
    // Other trouble may be all that is left.
    if (!out->contrast.comparable()) out->contrast = data.trail.Between(during);
    out->basis = Basis::kWindows;
  }
  if (!out->contrast.comparable() && theme == Theme::kInput) {
    out->contrast = data.trail.StarvedSteps();
    out->basis = Basis::kStarvedSteps;
  }
  if (!out->contrast.comparable()) {
    out->contrast = {};
    out->basis = Basis::kNone;
  }
}

std::string Share(double share) {
  return fmt::format("{:.0f}{}%", std::min(1.0, share) * 100, kSpace);
}

std::string Time(double ns) { return Duration(ns / 1e9); }

/// What the comparison says, in a sentence.
std::string Difference(const Explanation& e) {
  const analysis::Contrast& c = e.contrast;
  if (e.basis == Basis::kNone) return {};
  std::string out =
      fmt::format("A step takes {} instead of {}", Time(c.step_ns_during), Time(c.step_ns_normal));
  if (c.cause) {
    const analysis::Factor& f = c.times[*c.cause];
    return out + fmt::format(": {} is {} of the difference ({} instead of {}).", f.name,
                             Share(f.share), Time(f.during), Time(f.normal));
  }
  std::string candidates;
  for (std::size_t i = 0; i < std::min(kNamed, c.times.size()); ++i) {
    candidates += fmt::format("{}{} {}", candidates.empty() ? "" : ", ", c.times[i].name,
                              Share(c.times[i].share));
  }
  if (candidates.empty()) return out + "; nothing that was recorded explains it.";
  return out + "; of the difference: " + candidates + ".";
}

void Estimate(const RunData& data, const std::vector<std::vector<std::size_t>>& groups,
              Explanation* out) {
  const rules::Finding& first = data.replay.findings[out->findings.front()];
  out->lost_seconds = out->findings.size() == 1 ? std::max(0.0, first.incident.cost_seconds)
                                                : data.lost_seconds_of(out->findings, groups);
  out->lost_money = MoneyOf(data, out->lost_seconds);
  out->gain_money = MoneyOf(data, 0);
  if (out->lost_seconds <= 0) return;
  out->gain_seconds = out->lost_seconds;
  if (first.standing.theme == Theme::kEnd) {
    out->assumption = "assumes that a checkpoint is saved right before the end";
  } else if (first.wrong_result) {
    out->assumption = "assumes that the run is stopped where its result became wrong";
  } else if (out->basis == Basis::kWindows) {
    const auto ranks = static_cast<double>(std::max<std::size_t>(1, data.summary.ranks.size()));
    out->gain_seconds =
        std::min(out->gain_seconds, out->contrast.gap_ns() / 1e9 *
                                        static_cast<double>(out->contrast.steps_during) / ranks);
    out->assumption = fmt::format("assumes that all steps take their normal {}",
                                  Time(out->contrast.step_ns_normal));
  } else if (first.standing.theme == Theme::kInput) {
    out->assumption =
        "assumes that each batch is ready when the model asks for it, and that making it ready "
        "takes no time from the model";
  } else {
    out->assumption = "assumes that all of the lost time comes back";
  }
  out->gain_money = MoneyOf(data, out->gain_seconds);
}

Json FactorsJson(const std::vector<analysis::Factor>& factors) {
  Json out = Json::array();
  for (const analysis::Factor& f : factors) {
    out.push_back({{"kind", analysis::Name(f.kind)},
                   {"name", f.name},
                   {"unit", f.unit},
                   {"during", f.during},
                   {"normal", f.normal},
                   {"share", f.share}});
  }
  return out;
}

}  // namespace

std::string_view Name(Basis basis) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "windows", "slow steps",
                                                      "starved steps"};
  return kNames[static_cast<std::size_t>(basis)];
}

std::string_view RuleOf(const RunData& data, const rules::Finding& finding) {
  for (const rules::RuleState& state : data.replay.rules) {
    if (state.name == finding.rule && !state.rule.empty()) return state.rule;
  }
  return finding.rule;
}

std::vector<std::vector<std::size_t>> GroupFindings(const RunData& data) {
  return rules::Groups(data.replay.findings);
}

std::vector<Explanation> Explain(const RunData& data) {
  const std::vector<std::vector<std::size_t>> groups = GroupFindings(data);
  std::vector<Explanation> out;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Explanation& e = out.emplace_back();
    e.findings = groups[i];
    for (const std::size_t index : e.findings) {
      e.severity = std::max(e.severity, data.replay.findings[index].incident.severity);
    }
    if (i < kMostExplained) Compare(data, groups, i, &e);
    e.difference = Difference(e);
    const rules::Finding& first = data.replay.findings[e.findings.front()];
    if (!first.incident.cause.empty() && first.incident.cause != kNotFound) {
      e.cause = first.incident.cause;
      e.cause_found = true;
    } else if (e.contrast.cause) {
      e.cause = e.difference;
      e.cause_found = true;
    } else {
      e.cause = std::string(kNotFound);
    }
    Estimate(data, groups, &e);
  }
  return out;
}

std::optional<double> MoneyOf(const RunData& data, double seconds) {
  const double price = data.replay.rule_set.price_per_hour;
  if (!(price > 0)) return std::nullopt;
  return price * seconds / 3600;
}

std::string Money(double amount, std::string_view currency) {
  const std::string_view unit = currency.empty() ? std::string_view("USD") : currency;
  if (amount > 0 && amount < 0.005) return fmt::format("< 0.01{}{}", kSpace, unit);
  if (amount >= 1000) {
    return fmt::format("{}{}{}", Thousands(SaturatingRound(amount)), kSpace, unit);
  }
  return fmt::format("{:.2f}{}{}", amount, kSpace, unit);
}

std::string_view TogetherWord(const RunData& data, const std::vector<std::size_t>& findings,
                              double lost_seconds) {
  if (findings.size() < 2 || !(lost_seconds > 0)) return {};
  const double own = data.replay.findings[findings.front()].incident.cost_seconds;
  return Duration(own) == Duration(lost_seconds) ? std::string_view() : " together";
}

std::string GainWords(const RunData& data, const Explanation& explanation) {
  if (explanation.lost_seconds <= 0) return {};
  const auto money = [&](const std::optional<double>& amount) {
    return amount ? fmt::format(" ({})", Money(*amount, data.replay.rule_set.currency))
                  : std::string();
  };
  return fmt::format("Lost {}{}{}; mending it saves {} of such a run{}: {}.",
                     Duration(explanation.lost_seconds),
                     TogetherWord(data, explanation.findings, explanation.lost_seconds),
                     money(explanation.lost_money), Duration(explanation.gain_seconds),
                     money(explanation.gain_money), explanation.assumption);
}

std::string BeneathWords(const RunData& data, const Explanation& explanation) {
  struct Said {
    std::string_view rule;
    std::vector<std::string> subjects;
    std::size_t count = 0;
  };
  std::vector<Said> all;
  for (std::size_t i = 1; i < explanation.findings.size(); ++i) {
    const rules::Finding& f = data.replay.findings[explanation.findings[i]];
    auto found =
        std::find_if(all.begin(), all.end(), [&](const Said& said) { return said.rule == f.rule; });
    if (found == all.end()) {
      all.push_back({f.rule, {}, 0});
      found = std::prev(all.end());
    }
    ++found->count;
    std::string subject = SubjectOf(data, f);
    if (!subject.empty() && found->subjects.size() < kSubjects) {
      found->subjects.push_back(std::move(subject));
    }
  }
  if (all.empty()) return {};
  std::string out = "With it: ";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out += ", ";
    out += all[i].rule;
    std::string subjects;
    for (const std::string& subject : all[i].subjects) {
      subjects += (subjects.empty() ? "" : ", ") + subject;
    }
    if (!subjects.empty() && all[i].count > all[i].subjects.size()) {
      subjects += fmt::format(" and {} more", all[i].count - all[i].subjects.size());
    }
    if (!subjects.empty()) out += " (" + subjects + ")";
  }
  return out + ".";
}

nlohmann::ordered_json ToJson(const RunData& data, const Explanation& explanation) {
  Json ids = Json::array();
  for (const std::size_t index : explanation.findings) {
    ids.push_back(data.replay.findings[index].id);
  }
  Json out = {{"findings", std::move(ids)},
              {"severity", rules::Name(explanation.severity)},
              {"cause", explanation.cause},
              {"cause_found", explanation.cause_found},
              {"difference", explanation.difference},
              {"lost_seconds", explanation.lost_seconds},
              {"gain_seconds", explanation.gain_seconds},
              {"assumption", explanation.assumption},
              {"money", nullptr},
              {"comparison", nullptr}};
  if (explanation.lost_money && explanation.gain_money) {
    out["money"] = {{"lost", *explanation.lost_money},
                    {"gain", *explanation.gain_money},
                    {"currency", data.replay.rule_set.currency}};
  }
  if (explanation.basis != Basis::kNone) {
    const analysis::Contrast& c = explanation.contrast;
    out["comparison"] = {{"basis", Name(explanation.basis)},
                         {"steps_during", c.steps_during},
                         {"steps_normal", c.steps_normal},
                         {"step_ns_during", c.step_ns_during},
                         {"step_ns_normal", c.step_ns_normal},
                         {"coverage_needed", analysis::CauseTrail::kCoverage},
                         {"cause", nullptr},
                         {"times", FactorsJson(c.times)},
                         {"metrics", FactorsJson(c.metrics)}};
    if (c.cause) out["comparison"]["cause"] = c.times[*c.cause].name;
  }
  return out;
}

}  // namespace telltale::report
