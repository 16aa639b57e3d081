// SPDX-License-Identifier: Apache-2.0
#include "rules/foreign.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "rules/expression_rule.h"

namespace telltale::rules {

ForeignOptions ForeignOptionsOfEnvironment() {
  ForeignOptions options;
  // Nobody sets variables once threads run.
  const char* python = std::getenv("TELLTALE_PYTHON_RULES");  // NOLINT(concurrency-mt-unsafe)
  options.run_python = python == nullptr || std::string_view(python) != "off";
  return options;
}

Engine::ForeignMaker ForeignRules(ForeignOptions options) {
  return [options = std::move(options)](const RuleSpec& spec) -> Result<ForeignRule> {
    if (spec.source == RuleSource::kExpression) return MakeExpressionRule(spec);
    if (!options.run_python) return Status(Code::kUsage, std::string(kPythonLeftOut));
    return MakePythonRule(spec, options.python);
  };
}

}  // namespace telltale::rules
