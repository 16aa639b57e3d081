// SPDX-License-Identifier: Apache-2.0
// The options that make a capture plan, shared by `run` and `capture`, and how a plan is shown.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "plan/capture_plan.h"

namespace telltale::cli {

struct PlanFlags {
  std::string file;
  std::string level;
  std::string rules;  ///< `all` or NAME,...
  std::vector<std::string> collect;

  bool any() const { return whole() || !rules.empty() || !collect.empty(); }
  /// A whole plan is asked for, not an addition.
  bool whole() const { return !file.empty() || !level.empty(); }
};

/// Adds --plan, --level, --rules and --collect.
void AddPlanFlags(CLI::App* command, PlanFlags* flags);

/// A plan that takes nothing of tensors.
plan::CapturePlan Nothing();

/// The plan of a run: the plan file or the level, what --collect says in its place or added to it,
/// and what the rules of --rules need that it does not say. Without file, level and rules: what all
/// rules need. kUsage, kLimit: it is no plan; kUnusable: the file cannot be read.
Result<plan::CapturePlan> PlanOfRun(PlanFlags flags);

/// The same of a run that goes on, where --collect and --rules add to `base` unless a whole plan is
/// asked for. `holds`: what is recorded now, in which rules may find what they need.
Result<plan::CapturePlan> PlanOf(const PlanFlags& flags, const plan::CapturePlan& base,
                                 const plan::CapturePlan& holds = Nothing());

/// One line for each collection that is called nearly as a built-in one and names no tensors.
std::vector<std::string> LikelySlips(const plan::CapturePlan& plan);

/// A table as comments and the plan as TOML: a plan file.
std::string ExplainPlan(const plan::CapturePlan& plan);

}  // namespace telltale::cli
