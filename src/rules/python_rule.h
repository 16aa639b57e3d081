// SPDX-License-Identifier: Apache-2.0
// A rule in Python, in a process of its own (python/telltale/rule_host.py): it is given records in
// batches, what it reports is taken at a place of the order that depends on the records alone. One
// that loops, eats memory, crashes or writes what is no report is suspended.
// docs/guide/custom-rules.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "rules/engine.h"
#include "rules/rule_set.h"

namespace telltale::rules {

struct PythonRuleOptions {
  /// Interpreter where the rule names none: TELLTALE_PYTHON, else python3 of PATH.
  std::string python;
  /// Folder of the package telltale; empty: that of this installation.
  std::filesystem::path package_dir;
};

/// REQUIRES: spec.source is kPython. Starts the process and waits until the rule is made, at most a
/// minute. kUsage: there is no such file or class, a limit that is no number, or making the rule
/// failed; the message has the last line of its error.
Result<ForeignRule> MakePythonRule(const RuleSpec& spec, const PythonRuleOptions& options);

}  // namespace telltale::rules
