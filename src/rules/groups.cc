// SPDX-License-Identifier: Apache-2.0
#include "rules/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"

namespace telltale::rules {
namespace {

bool Overlap(const Incident& a, const Incident& b) {
  return a.start_ns <= b.end_ns && b.start_ns <= a.end_ns;
}

bool Lasts(const Finding& f) { return f.open || f.until_end; }

/// The smaller is read first.
auto Key(const Finding& f) {
  return std::tuple(f.standing.theme != Theme::kEnd, -static_cast<int>(f.incident.severity),
                    !Lasts(f), !f.wrong_result, -f.incident.cost_seconds, f.incident.start_ns,
                    std::string_view(f.id));
}

/// What its evidence says; nothing where it does not.
std::optional<double> ExplainsSeconds(const Finding& f) {
  if (f.incident.evidence.find(kExplainsSeconds) == std::string::npos) return std::nullopt;
  const auto evidence = ParseJson(f.incident.evidence);
  if (!evidence.is_object()) return std::nullopt;
  const auto found = evidence.find(kExplainsSeconds);
  if (found == evidence.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// "rank 0" of "rank 0, Adam".
std::string_view TrainingOf(const Finding& f) {
  return std::string_view(f.incident.subject).substr(0, f.incident.subject.find(','));
}

/// Whether the cause was there for at least half of the time of what follows from it.
bool Covers(const Incident& cause, const Incident& follows) {
  const std::int64_t both =
      std::min(cause.end_ns, follows.end_ns) - std::max(cause.start_ns, follows.start_ns);
  return both >= 0 && both >= (follows.end_ns - follows.start_ns) / 2;
}

constexpr std::size_t kNoCause = static_cast<std::size_t>(-1);

/// The rules that the evidence of each finding names under `key`.
std::vector<std::vector<std::string>> RulesIn(std::span<const Finding> findings, const char* key) {
  std::vector<std::vector<std::string>> all(findings.size());
  const std::string quoted = fmt::format("\"{}\"", key);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (findings[i].incident.evidence.find(quoted) == std::string::npos) continue;
    const auto evidence = ParseJson(findings[i].incident.evidence);
    if (!evidence.is_object()) continue;
    const auto rules = evidence.find(key);
    if (rules == evidence.end() || !rules->is_array()) continue;
    for (const auto& rule : *rules) {
      if (rule.is_string()) all[i].push_back(rule.get<std::string>());
    }
  }
  return all;
}

bool Names(const std::vector<std::string>& rules, const Finding& finding) {
  return std::find(rules.begin(), rules.end(), finding.rule) != rules.end();
}

/// Which rules findings name as their causes, and which as what follows from them.
struct Links {
  explicit Links(std::span<const Finding> findings)
      : explained_by(RulesIn(findings, kExplainedBy)), explains(RulesIn(findings, kExplains)) {}
  std::vector<std::vector<std::string>> explained_by;
  std::vector<std::vector<std::string>> explains;
};

/// Whether finding i follows from finding c.
bool Follows(std::span<const Finding> findings, const Links& links, std::size_t i, std::size_t c) {
  const Finding& follows = findings[i];
  const Finding& cause = findings[c];
  // What says itself what follows from it is sure of that.
  const bool says = Names(links.explains[c], follows);
  return c != i && cause.incident.severity >= (says ? Severity::kLow : Severity::kMedium) &&
         (says || Names(links.explained_by[i], cause)) &&
         TrainingOf(cause) == TrainingOf(follows) && (!Lasts(follows) || Lasts(cause)) &&
         Covers(cause.incident, follows.incident);
}

/// Of each finding the one that explains it, else kNoCause. Of several the one that is read first;
/// a cause that follows from another one itself explains through that.
std::vector<std::size_t> CausesOf(std::span<const Finding> findings) {
  std::vector<std::size_t> causes(findings.size(), kNoCause);
  const Links links(findings);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    for (std::size_t c = 0; c < findings.size(); ++c) {
      if (!Follows(findings, links, i, c)) continue;
      const Finding& cause = findings[c];
      if (causes[i] == kNoCause || Key(cause) < Key(findings[causes[i]])) causes[i] = c;
    }
  }
  // Of a chain the first counts; two that name each other explain nothing.
  std::vector<std::size_t> firsts = causes;
  for (std::size_t& first : firsts) {
    for (std::size_t n = 0; first != kNoCause && causes[first] != kNoCause; ++n) {
      first = n < causes.size() ? causes[first] : kNoCause;
    }
  }
  return firsts;
}

/// Of too many those that are kept, in their order: groups are found by comparing each with each.
std::vector<std::size_t> Chosen(std::span<const Finding> findings) {
  std::vector<std::size_t> order(findings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return Key(findings[a]) < Key(findings[b]); });
  std::map<std::string_view, std::size_t> of_rule;
  for (const Finding& f : findings) of_rule.try_emplace(f.rule, 0);
  const std::size_t share = std::max<std::size_t>(1, kMostRanked / 2 / of_rule.size());
  std::vector<bool> taken(findings.size(), false);
  std::vector<std::size_t> out;
  const auto take = [&](std::size_t index) {
    taken[index] = true;
    out.push_back(index);
  };
  for (const std::size_t index : order) {
    std::size_t& has = of_rule[findings[index].rule];
    if (has >= share || out.size() == kMostRanked) continue;
    ++has;
    take(index);
  }
  const Links links(findings);
  const std::vector<std::size_t> shared = out;
  for (const std::size_t cause : order) {
    if (out.size() == kMostRanked) break;
    if (!taken[cause] && std::any_of(shared.begin(), shared.end(), [&](std::size_t index) {
          return Follows(findings, links, index, cause);
        })) {
      take(cause);
    }
  }
  for (const std::size_t index : order) {
    if (out.size() == kMostRanked) break;
    if (!taken[index]) take(index);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// What follows stands right behind its cause.
void PutBehindTheirCauses(std::span<const Finding> findings, std::span<const std::size_t> causes,
                          std::vector<std::size_t>* group) {
  std::vector<std::size_t> out;
  for (const std::size_t cause : *group) {
    if (causes[cause] != kNoCause) continue;
    out.push_back(cause);
    const auto behind = static_cast<std::ptrdiff_t>(out.size());
    for (const std::size_t follows : *group) {
      if (causes[follows] == cause) out.push_back(follows);
    }
    // Orders of different themes say nothing of each other.
    std::stable_sort(out.begin() + behind, out.end(), [&](std::size_t a, std::size_t b) {
      return Key(findings[a]) < Key(findings[b]);
    });
  }
  *group = std::move(out);
}

/// Findings that say what they explain change places with each other, and with no others: those of
/// the rule that explains the most come first.
void PutTheMostExplainedFirst(std::span<const Finding> findings, std::vector<std::size_t>* group) {
  for (const bool lasts : {true, false}) {
    std::vector<std::size_t> places;
    std::vector<std::size_t> members;
    std::map<std::string_view, double> seconds;  // By rule: it may have a finding for each rank.
    for (std::size_t at = 0; at < group->size(); ++at) {
      const Finding& f = findings[(*group)[at]];
      if (Lasts(f) != lasts) continue;
      const std::optional<double> explains = ExplainsSeconds(f);
      if (!explains) continue;
      places.push_back(at);
      members.push_back((*group)[at]);
      seconds[f.rule] += *explains;
    }
    if (seconds.size() < 2) continue;
    std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      return seconds[findings[a].rule] > seconds[findings[b].rule];
    });
    for (std::size_t i = 0; i < places.size(); ++i) (*group)[places[i]] = members[i];
  }
}

}  // namespace

std::vector<std::vector<std::size_t>> Groups(std::span<const Finding> findings) {
  std::vector<std::size_t> order(findings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return Key(findings[a]) < Key(findings[b]);
  });
  const std::vector<std::size_t> causes = CausesOf(findings);
  std::vector<std::vector<std::size_t>> groups;
  std::vector<Theme> themes;  // Of the groups.
  for (const std::size_t i : order) {
    if (causes[i] != kNoCause) continue;
    const Theme theme = findings[i].standing.theme;
    const auto meets = [&](std::size_t g) {
      return theme != Theme::kNone && themes[g] == theme &&
             std::any_of(groups[g].begin(), groups[g].end(), [&](std::size_t other) {
               return Overlap(findings[other].incident, findings[i].incident);
             });
    };
    std::size_t into = 0;
    while (into < groups.size() && !meets(into)) ++into;
    if (into == groups.size()) {
      groups.emplace_back();
      themes.push_back(theme);
    }
    // It may overlap with two that do not overlap with each other: all of them are one.
    for (std::size_t g = groups.size() - 1; g > into; --g) {
      if (!meets(g)) continue;
      groups[into].insert(groups[into].end(), groups[g].begin(), groups[g].end());
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(g));
      themes.erase(themes.begin() + static_cast<std::ptrdiff_t>(g));
    }
    groups[into].push_back(i);
  }
  for (std::vector<std::size_t>& group : groups) {
    for (const std::size_t i : order) {
      if (causes[i] != kNoCause &&
          std::find(group.begin(), group.end(), causes[i]) != group.end()) {
        group.push_back(i);
      }
    }
  }
  for (std::vector<std::size_t>& group : groups) {
    // What is over explains nothing that lasts.
    std::sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        return std::pair(std::pair(!Lasts(findings[i]), findings[i].standing.order),
                         Key(findings[i]));
      };
      return key(a) < key(b);
    });
    if (group.size() > 1) {
      PutTheMostExplainedFirst(findings, &group);
      PutBehindTheirCauses(findings, causes, &group);
    }
  }
  // What follows may be the severest of its group.
  const auto severest = [&](const std::vector<std::size_t>& group) {
    return std::min_element(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      return Key(findings[a]) < Key(findings[b]);
    });
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) {
    return Key(findings[*severest(a)]) < Key(findings[*severest(b)]);
  });
  return groups;
}

std::vector<Finding> Ranked(std::vector<Finding> findings, std::size_t* left_out) {
  const std::size_t more = findings.size() - std::min(findings.size(), kMostRanked);
  if (left_out != nullptr) *left_out = more;
  if (more > 0) {
    std::vector<Finding> kept;
    kept.reserve(kMostRanked);
    for (const std::size_t index : Chosen(findings)) kept.push_back(std::move(findings[index]));
    findings = std::move(kept);
  }
  const std::vector<std::size_t> causes = CausesOf(findings);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (causes[i] == kNoCause) continue;
    Incident& cause = findings[causes[i]].incident;
    cause.severity = std::max(cause.severity, findings[i].incident.severity);
    findings[i].incident.advice = fmt::format("First do what {} says.", findings[causes[i]].rule);
  }
  std::vector<Finding> out;
  out.reserve(findings.size());
  for (const std::vector<std::size_t>& group : Groups(findings)) {
    for (const std::size_t index : group) out.push_back(std::move(findings[index]));
  }
  return out;
}

}  // namespace telltale::rules
