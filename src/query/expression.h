// SPDX-License-Identifier: Apache-2.0
// The conditions of `telltale query --where`:
//
//   condition  = and { "or" and }
//   and        = not { "and" not }
//   not        = "not" not | "(" condition ")" | comparison
//   comparison = operand [ ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") operand
//                        | ["not"] "in" "(" literal { "," literal } ")"
//                        | ["not"] "like" string ]
//   operand    = column | literal
//   literal    = number | 'string' ('' is a quote) | "true" | "false"
//
// Words of the language in any case. In a pattern % stands for any text, nothing else is special.
// Numbers compare by value whatever their types; NaN is unequal to everything. A lone operand must
// be a bool.
#pragma once
#include <memory>
#include <string_view>

#include "base/status.h"
#include "query/table.h"

namespace telltale::query {

class Expression {
 public:
  virtual ~Expression() = default;
  virtual bool Matches(const RowRef& row) const = 0;

  /// Code::kUsage: what is wrong at which character of `text`, counted from 1. `table` outlives the
  /// expression.
  static Result<std::unique_ptr<Expression>> Parse(std::string_view text, const Table& table);
};

}  // namespace telltale::query
