// SPDX-License-Identifier: Apache-2.0
#include "cli/rule_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "format/control_collections.h"
#include "plan/thinning.h"

namespace telltale::cli {
namespace {

// In Collection::when.
constexpr std::size_t kTrain = 0;
constexpr std::size_t kEval = 1;

/// As `--collect` would say it; a pattern may hold what separates options there.
Result<plan::Collection> CollectionOf(const rules::Need& need) {
  std::string text = fmt::format("x:take={},train.interval={}", need.take, need.interval);
  if (need.eval_interval > 0) text += fmt::format(",eval.interval={}", need.eval_interval);
  TELLTALE_ASSIGN_OR_RETURN(plan::Collection out, plan::ParseCollect(text));
  out.name = need.collection;
  if (!need.include.empty()) out.include.push_back(need.include);
  return out;
}

/// Of a collection that nobody but rules asked for: it serves this need too.
void Widen(const rules::Need& need, plan::Collection* collection) {
  const auto widen = [&](std::size_t mode, std::uint32_t interval) {
    plan::When& when = collection->when[mode];
    if (interval > 0 && (when.interval == 0 || interval < when.interval)) when.interval = interval;
  };
  widen(kTrain, need.interval);
  widen(kEval, need.eval_interval);
}

/// As often as is needed, and at no time less.
bool IsInTime(const rules::Need& need, const plan::When& when) {
  return when.interval > 0 && (need.interval == 0 || when.interval <= need.interval) &&
         when.start == 0 && when.end == plan::kNoEnd;
}

enum class Served : std::uint8_t { kNothing, kSome, kSeldom, kAll };

/// What a plan takes for a need: of each tensor of the collection as often as is needed, or less
/// often or not at all times, or of some that it names.
Served ServedBy(const plan::Compiled& plan, const rules::Need& need) {
  const auto wanted = CollectionOf(need);
  if (!wanted.ok()) return Served::kNothing;
  std::uint32_t all = 0;
  const auto known = plan.collections();
  for (std::size_t i = 0; i < std::size(format::kKnownCollections); ++i) {
    if (format::kKnownCollections[i] == need.collection) all = known[i].takes;
  }
  const std::uint32_t some = plan.MaskOf(need.collection, "");
  // Of a collection of the user's words nobody knows which tensors are all.
  if (!need.include.empty()) all |= some;
  Served served = Served::kNothing;
  for (std::size_t i = 0; i < plan.planned().size(); ++i) {
    const plan::PlannedRule& rule = plan.planned()[i];
    const bool takes = (rule.take & wanted->take) == wanted->take && !rule.when[kTrain].Never();
    if (!takes) continue;
    const bool whole = (all >> i & 1U) != 0;
    if (whole && IsInTime(need, rule.when[kTrain])) return Served::kAll;
    if (whole) {
      served = Served::kSeldom;
    } else if ((some >> i & 1U) != 0) {
      served = std::max(served, Served::kSome);
    }
  }
  return served;
}

}  // namespace

Status AddNeeds(const std::vector<rules::Need>& needs, const plan::CapturePlan& holds,
                const std::set<std::string>& said, plan::CapturePlan* plan) {
  for (const rules::Need& need : needs) {
    TELLTALE_ASSIGN_OR_RETURN(const plan::Collection wanted, CollectionOf(need));
    const auto is_it = [&](const plan::Collection& c) { return c.name == need.collection; };
    auto there = std::find_if(plan->collections.begin(), plan->collections.end(), is_it);
    const bool fresh = there == plan->collections.end();
    if (fresh) {
      const auto now = std::find_if(holds.collections.begin(), holds.collections.end(), is_it);
      plan->collections.push_back(now == holds.collections.end() ? wanted : *now);
      there = std::prev(plan->collections.end());
    }
    const plan::Collection before = *there;
    there->take |= wanted.take;
    for (const std::string& pattern : wanted.include) {
      const bool has =
          std::find(there->include.begin(), there->include.end(), pattern) != there->include.end();
      if (!has) there->include.push_back(pattern);
    }
    const auto held = std::find_if(holds.collections.begin(), holds.collections.end(), is_it);
    const bool free = held == holds.collections.end() || plan::IsAsOfALevel(*held);
    if (free && !said.contains(need.collection)) Widen(need, &*there);
    // It is the level's plan only where the level takes all of this.
    if (fresh || !(*there == before)) plan->level = "custom";
  }
  return {};
}

void MarkAsked(const std::vector<rules::Need>& needs, plan::CapturePlan* plan) {
  for (plan::Collection& collection : plan->collections) {
    collection.asked =
        collection.asked || std::any_of(needs.begin(), needs.end(), [&](const rules::Need& need) {
          return need.collection == collection.name;
        });
  }
}

std::string NeededBy(const std::vector<rules::Need>& needs, std::string_view collection) {
  std::set<std::string_view> names;
  for (const rules::Need& need : needs) {
    if (need.collection == collection) names.insert(need.rule);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> Unserved(const plan::Compiled& plan,
                                  const std::vector<rules::Need>& needs) {
  struct Of {
    bool whole = true;
    bool any = false;
    std::string lacking;
    bool seldom = false;  ///< Of something, not often enough.
  };
  std::map<std::string_view, Of> by_rule;
  for (const rules::Need& need : needs) {
    Of& of = by_rule[need.rule];
    const Served served = ServedBy(plan, need);
    of.any = of.any || served != Served::kNothing;
    if (served == Served::kAll) continue;
    of.whole = false;
    of.lacking +=
        fmt::format("{}{} of {}", of.lacking.empty() ? "" : ", ", need.take, need.collection);
    if (served != Served::kSeldom) continue;
    of.lacking += fmt::format(" each {} steps", need.interval);
    of.seldom = true;
  }
  std::vector<std::string> out;
  for (const auto& [name, of] : by_rule) {
    if (of.whole) continue;
    out.push_back(fmt::format(
        "The rule {} will {}: it needs {} in TRAIN steps: --rule {} adds what the plan does not "
        "mention{}.",
        name, of.any ? "see a part only" : "have no data", of.lacking, name,
        of.seldom ? "; when it takes what it mentions, you say yourself" : ""));
  }
  return out;
}

}  // namespace telltale::cli
