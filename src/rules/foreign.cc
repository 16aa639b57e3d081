// SPDX-License-Identifier: Apache-2.0
#include "rules/foreign.h"

#include <utility>

#include "rules/expression_rule.h"

namespace telltale::rules {

Engine::ForeignMaker ForeignRules(ForeignOptions options) {
  return [options = std::move(options)](const RuleSpec& spec) -> Result<ForeignRule> {
    if (spec.source == RuleSource::kExpression) return MakeExpressionRule(spec);
    if (!options.run_python) return Status(Code::kUsage, "rules in Python were left out");
    return MakePythonRule(spec, options.python);
  };
}

}  // namespace telltale::rules
