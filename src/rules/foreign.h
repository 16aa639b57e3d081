// SPDX-License-Identifier: Apache-2.0
// Makes the rules that are none of ours: expressions and Python.
#pragma once
#include <string_view>

#include "rules/engine.h"
#include "rules/python_rule.h"

namespace telltale::rules {

/// The error of a rule in Python that somebody chose not to run.
inline constexpr std::string_view kPythonLeftOut = "rules in Python were left out";

struct ForeignOptions {
  /// False: rules in Python are refused, so that nobody's code runs (a run of somebody else's).
  bool run_python = true;
  PythonRuleOptions python;
};

/// run_python unless TELLTALE_PYTHON_RULES is "off".
ForeignOptions ForeignOptionsOfEnvironment();

/// For Engine::Create. A rule that cannot be made is in the engine with its error.
Engine::ForeignMaker ForeignRules(ForeignOptions options = {});

}  // namespace telltale::rules
