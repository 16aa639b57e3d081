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
  std::vector<std::string> collect;

  bool any() const { return !file.empty() || !level.empty() || !collect.empty(); }
  /// A whole plan is asked for, not an addition.
  bool whole() const { return !file.empty() || !level.empty(); }
};

/// Adds --plan, --level and --collect.
void AddPlanFlags(CLI::App* command, PlanFlags* flags);

/// The plan file, the level and what --collect says, united in this order; where neither file nor
/// level is named, --collect adds to `base`. kUsage, kLimit: it is no plan; kUnusable: the file
/// cannot be read.
Result<plan::CapturePlan> PlanOf(const PlanFlags& flags, const plan::CapturePlan& base);

/// A table as comments and the plan as TOML: a plan file.
std::string ExplainPlan(const plan::CapturePlan& plan);

}  // namespace telltale::cli
