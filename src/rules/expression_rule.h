// SPDX-License-Identifier: Apache-2.0
// A rule that is one line of the expression language (docs/formats/expressions.md), as the engine
// runs it.
#pragma once
#include "base/status.h"
#include "rules/engine.h"
#include "rules/rule_set.h"

namespace telltale::rules {

/// REQUIRES: spec.source is kExpression. kUsage: the expression does not parse; the message has the
/// column and the line with a caret under it.
Result<ForeignRule> MakeExpressionRule(const RuleSpec& spec);

}  // namespace telltale::rules
