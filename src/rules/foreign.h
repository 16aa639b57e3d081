// SPDX-License-Identifier: Apache-2.0
// Makes the rules that are none of ours: expressions and Python.
#pragma once
#include <cstdint>
#include <string_view>

#include "rules/engine.h"
#include "rules/python_rule.h"

namespace telltale::rules {

/// The error of a rule in Python that somebody chose not to run.
inline constexpr std::string_view kPythonLeftOut = "rules in Python were left out";

/// Which rules in Python are run: they are code.
enum class PythonRules : std::uint8_t {
  kNone,
  kAsked,  ///< Those that the user has asked for (python_consent.h), whatever a run names.
  kAll,
};

struct ForeignOptions {
  PythonRules python_rules = PythonRules::kAsked;
  PythonRuleOptions python;
};

/// TELLTALE_PYTHON_RULES: "off" none, "on" all; those that the user has asked for without.
ForeignOptions ForeignOptionsOfEnvironment();

/// For Engine::Create. A rule that cannot be made is in the engine with its error.
Engine::ForeignMaker ForeignRules(ForeignOptions options = {});

}  // namespace telltale::rules
