// SPDX-License-Identifier: Apache-2.0
// What the rules need makes the capture plan: from the rules' own table to a plan, and what of
// their needs a plan serves. Thread safety: stateless.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"
#include "rules/rule.h"

namespace telltale::cli {

/// The rules of `all` or `NAME,...`. kUsage: one is none.
Result<std::vector<const rules::RuleDesc*>> RulesOf(std::string_view names);

/// Adds to `plan` what the rules need. A collection that `plan` has takes what is needed too, when
/// it is due stays as it was said: the user's word. One that it has not, but `holds` has, is added
/// as there, with what is needed.
Status AddNeeds(const std::vector<const rules::RuleDesc*>& rules, const plan::CapturePlan& holds,
                plan::CapturePlan* plan);

/// Names of the rules that need something of the collection, ", " between them.
std::string NeededBy(std::string_view collection);

/// One line for each rule that the plan gives nothing, or not all of what it needs.
std::vector<std::string> Unserved(const plan::Compiled& plan);

}  // namespace telltale::cli
