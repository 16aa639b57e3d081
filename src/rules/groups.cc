// SPDX-License-Identifier: Apache-2.0
#include "rules/groups.h"

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
                    f.id);
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
  std::vector<std::vector<std::size_t>> groups;
  std::vector<Theme> themes;  // Of the groups.
  for (const std::size_t i : order) {
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
    // What is over explains nothing that lasts.
    std::sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        return std::pair(std::pair(!Lasts(findings[i]), findings[i].standing.order),
                         Key(findings[i]));
      };
      return key(a) < key(b);
    });
    if (group.size() > 1) PutTheMostExplainedFirst(findings, &group);
  }
  return groups;
}

std::vector<Finding> Ranked(std::vector<Finding> findings) {
  std::vector<Finding> out;
  out.reserve(findings.size());
  for (const std::vector<std::size_t>& group : Groups(findings)) {
    for (const std::size_t index : group) out.push_back(std::move(findings[index]));
  }
  return out;
}

}  // namespace telltale::rules
