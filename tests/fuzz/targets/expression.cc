// SPDX-License-Identifier: Apache-2.0
// Expression rules.
#include "fuzz.h"
#include "rules/expression/parser.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(expression) {
  const auto expression = rules::expression::Parse(bytes);
  if (!expression.ok()) Require(expression.status().code() == Code::kUsage);
}

}  // namespace telltale::fuzz
