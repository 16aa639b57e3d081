// SPDX-License-Identifier: Apache-2.0
#include "cli/rule_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "format/control_collections.h"
#include "plan/thinning.h"
#include "rules/registry.h"

namespace telltale::cli {
namespace {

constexpr std::size_t kTrain = 0;  ///< In Collection::when.

/// As `--collect` would say it.
Result<plan::Collection> CollectionOf(const rules::CaptureNeed& need) {
  return plan::ParseCollect(
      fmt::format("{}:{},train.interval={}", need.collection, need.take, need.interval));
}

enum class Served : std::uint8_t { kNothing, kSome, kAll };

/// What a plan takes for a need: of each tensor of the collection, or of some that it names.
Served ServedBy(const plan::Compiled& plan, const rules::CaptureNeed& need) {
  const auto wanted = CollectionOf(need);
  if (!wanted.ok()) return Served::kNothing;
  std::uint32_t all = 0;
  const auto known = plan.collections();
  for (std::size_t i = 0; i < std::size(format::kKnownCollections); ++i) {
    if (format::kKnownCollections[i] == need.collection) all = known[i].takes;
  }
  const std::uint32_t some = plan.MaskOf(need.collection, "");
  Served served = Served::kNothing;
  for (std::size_t i = 0; i < plan.planned().size(); ++i) {
    const plan::PlannedRule& rule = plan.planned()[i];
    const bool takes = (rule.take & wanted->take) == wanted->take && !rule.when[kTrain].Never();
    if (!takes) continue;
    if ((all >> i & 1U) != 0) return Served::kAll;
    if ((some >> i & 1U) != 0) served = Served::kSome;
  }
  return served;
}

}  // namespace

Result<std::vector<const rules::RuleDesc*>> RulesOf(std::string_view names) {
  std::vector<const rules::RuleDesc*> out;
  if (names == "all") {
    for (const rules::RuleEntry& entry : rules::Registry()) out.push_back(entry.desc);
    return out;
  }
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    const std::string_view name = names.substr(at, end - at);
    const rules::RuleEntry* const entry = rules::FindRule(name);
    if (entry == nullptr) {
      return Status(Code::kUsage, fmt::format("--rules '{}': no rule '{}': write all, or names of "
                                              "`telltale rules list` with commas between them",
                                              names, name));
    }
    out.push_back(entry->desc);
    at = end + 1;
  }
  return out;
}

Status AddNeeds(const std::vector<const rules::RuleDesc*>& rules, const plan::CapturePlan& holds,
                plan::CapturePlan* plan) {
  for (const rules::RuleDesc* rule : rules) {
    for (const rules::CaptureNeed& need : rule->captures) {
      TELLTALE_ASSIGN_OR_RETURN(const plan::Collection wanted, CollectionOf(need));
      const auto is_it = [&](const plan::Collection& c) { return c.name == need.collection; };
      const auto there = std::find_if(plan->collections.begin(), plan->collections.end(), is_it);
      if (there != plan->collections.end()) {
        if ((there->take & wanted.take) == wanted.take) continue;
        there->take |= wanted.take;
      } else {
        const auto held = std::find_if(holds.collections.begin(), holds.collections.end(), is_it);
        plan->collections.push_back(held == holds.collections.end() ? wanted : *held);
        plan->collections.back().take |= wanted.take;
      }
      plan->level = "custom";
    }
  }
  return {};
}

std::string NeededBy(std::string_view collection) {
  std::string out;
  for (const rules::RuleEntry& entry : rules::Registry()) {
    const auto& needs = entry.desc->captures;
    const bool needed = std::any_of(needs.begin(), needs.end(), [&](const rules::CaptureNeed& n) {
      return n.collection == collection;
    });
    if (needed) out += fmt::format("{}{}", out.empty() ? "" : ", ", entry.desc->name);
  }
  return out;
}

std::vector<std::string> Unserved(const plan::Compiled& plan) {
  std::vector<std::string> out;
  for (const rules::RuleEntry& entry : rules::Registry()) {
    std::size_t whole = 0;
    std::size_t any = 0;
    std::string lacking;
    for (const rules::CaptureNeed& need : entry.desc->captures) {
      const Served served = ServedBy(plan, need);
      whole += served == Served::kAll ? 1 : 0;
      any += served == Served::kNothing ? 0 : 1;
      if (served == Served::kAll) continue;
      lacking += fmt::format("{}{} of {}", lacking.empty() ? "" : ", ", need.take, need.collection);
    }
    if (whole == entry.desc->captures.size()) continue;
    out.push_back(fmt::format(
        "The rule {} will {}: it needs {} in TRAIN steps: --rules {} adds what the plan does not "
        "mention.",
        entry.desc->name, any == 0 ? "have no data" : "see a part only", lacking,
        entry.desc->name));
  }
  return out;
}

}  // namespace telltale::cli
