// SPDX-License-Identifier: Apache-2.0
// What the rules need makes the capture plan: from the rules' own table to a plan, and what of
// their needs a plan serves. Thread safety: stateless.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"
#include "rules/rule_set.h"

namespace telltale::cli {

/// Adds to `plan` what the rules need, in TRAIN steps. A collection of it that `said` names takes
/// what is needed too, when it is due stays as it was said: the user's word. Another one is taken
/// as often as the most eager of the rules needs it. One that `plan` has not, but `holds` has, is
/// added as there, with what is needed; who said when it is due there is not known: where that is
/// as in a level, nobody. kUsage: what a rule needs is no collection.
Status AddNeeds(const std::vector<rules::Need>& needs, const plan::CapturePlan& holds,
                const std::set<std::string>& said, plan::CapturePlan* plan);

/// Marks what the rules need as asked for by name.
void MarkAsked(const std::vector<rules::Need>& needs, plan::CapturePlan* plan);

/// Names of the rules that need something of the collection, ", " between them.
std::string NeededBy(const std::vector<rules::Need>& needs, std::string_view collection);

/// One line for each rule that the plan gives nothing, or not all of what it needs.
std::vector<std::string> Unserved(const plan::Compiled& plan,
                                  const std::vector<rules::Need>& needs);

}  // namespace telltale::cli
