// SPDX-License-Identifier: Apache-2.0
#include "rules/foreign.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "rules/expression_rule.h"
#include "rules/python_consent.h"

namespace telltale::rules {

ForeignOptions ForeignOptionsOfEnvironment() {
  ForeignOptions options;
  // Nobody sets variables once threads run.
  const char* python = std::getenv("TELLTALE_PYTHON_RULES");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view which = python == nullptr ? std::string_view() : python;
  if (which == "on") options.python_rules = PythonRules::kAll;
  if (which == "off") options.python_rules = PythonRules::kNone;
  return options;
}

Engine::ForeignMaker ForeignRules(ForeignOptions options) {
  return [options = std::move(options)](const RuleSpec& spec) -> Result<ForeignRule> {
    if (spec.source == RuleSource::kExpression) return MakeExpressionRule(spec);
    if (options.python_rules == PythonRules::kNone) {
      return Status(Code::kUsage, std::string(kPythonLeftOut));
    }
    if (options.python_rules == PythonRules::kAsked && !PythonConsent::OfUser().Has(spec)) {
      return Status(Code::kUsage,
                    "it is code that the run names and that you have not asked for, so it was not "
                    "run: --python-rules runs it, or TELLTALE_PYTHON_RULES=on");
    }
    return MakePythonRule(spec, options.python);
  };
}

}  // namespace telltale::rules
