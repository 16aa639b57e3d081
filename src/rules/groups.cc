// SPDX-License-Identifier: Apache-2.0
#include "rules/groups.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>

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
