// SPDX-License-Identifier: Apache-2.0
// Findings and rules as the command line and the page print them: one place for names and order of
// the fields, which are a contract.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rules/engine.h"
#include "rules/registry.h"

namespace telltale::rules {

nlohmann::ordered_json ToJson(const Finding& finding);
nlohmann::ordered_json ToJson(const RuleState& state);
nlohmann::ordered_json ToJson(const RuleDesc& desc);

/// "10 TRAIN steps and 7 EVAL steps": between two captures.
std::string StepsOf(const CaptureNeed& need);

/// The page of a rule, docs/rules/NAME.md.
std::string ToMarkdown(const RuleDesc& desc);

}  // namespace telltale::rules
