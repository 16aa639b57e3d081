// SPDX-License-Identifier: Apache-2.0
// From the text of an expression rule to what can be evaluated; docs/formats/expressions.md is the
// language.
#pragma once
#include <string_view>

#include "base/status.h"
#include "rules/expression/ast.h"

namespace telltale::rules::expression {

/// At most so many calls, and so deep in parentheses.
inline constexpr std::size_t kMostCalls = 16;
inline constexpr int kDeepest = 50;

/// kUsage: what is wrong, with its column, its line and a caret (WrongAt).
Result<Expression> Parse(std::string_view text);

}  // namespace telltale::rules::expression
