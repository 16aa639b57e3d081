// SPDX-License-Identifier: Apache-2.0
// The options that make a capture plan, shared by `run` and `capture`, and how a plan is shown.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "plan/capture_plan.h"
#include "rules/rule_set.h"

namespace telltale::cli {

struct PlanFlags {
  std::string file;
  std::string level;
  std::vector<std::string> collect;
  std::vector<std::string> windows;

  bool any() const { return whole() || !collect.empty() || !windows.empty(); }
  /// A whole plan is asked for, not an addition.
  bool whole() const { return !file.empty() || !level.empty(); }
};

/// Adds --plan, --level, --collect and --window.
void AddPlanFlags(CLI::App* command, PlanFlags* flags);

/// A plan that takes nothing of tensors.
plan::CapturePlan Nothing();

/// The plan of a run: the plan file or the level, what --collect says in its place or added to it,
/// and what the rules that `set` names need that it does not say. Without file and level: the
/// default plan and what all rules of the set need. kUsage, kLimit: it is no plan; kUnusable: the
/// file cannot be read. REQUIRES: Resolve(set) is ok.
Result<plan::CapturePlan> PlanOfRun(const PlanFlags& flags, const rules::RuleSet& set = {});

/// The same of a run that goes on, where --collect and `needs` add to `base` unless a whole plan is
/// asked for. `holds`: what is recorded now, in which rules may find what they need.
Result<plan::CapturePlan> PlanOf(const PlanFlags& flags, const plan::CapturePlan& base,
                                 const std::vector<rules::Need>& needs,
                                 const plan::CapturePlan& holds = Nothing());

/// One line for each collection that is called nearly as a built-in one and names no tensors, and
/// for each that is taken in GLOBAL alone.
std::vector<std::string> LikelySlips(const plan::CapturePlan& plan);

/// A table as comments and the plan as TOML: a plan file. `needs`: of the rules that run.
std::string ExplainPlan(const plan::CapturePlan& plan, const std::vector<rules::Need>& needs);

}  // namespace telltale::cli
