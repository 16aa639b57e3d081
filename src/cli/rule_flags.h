// SPDX-License-Identifier: Apache-2.0
// The options that say which rules run, shared by `run`, `check` and `capture`.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"
#include "rules/foreign.h"
#include "rules/rule_set.h"

namespace telltale::cli {

struct RuleFlags {
  std::string file;
  std::vector<std::string> rules;  ///< NAME[:parameter=value,...].
  std::vector<std::string> off;
  double price_per_hour = -1;  ///< Negative: not said.

  bool any() const {
    return !file.empty() || !rules.empty() || !off.empty() || price_per_hour >= 0;
  }
};

/// Adds --rules, --rule, --no-rule and --price.
void AddRuleFlags(CLI::App* command, RuleFlags* flags);
/// Adds --rule alone.
void AddRuleFlag(CLI::App* command, RuleFlags* flags);

/// Adds --python-rules: the rules in Python that the run names are run, whoever asked for them.
Option AddPythonRulesFlag(CLI::App* command);
/// Adds --actions: the actions that the run names act, whoever asked for them.
Option AddActionsFlag(CLI::App* command);
/// For this process and those that it starts. REQUIRES: no other thread runs.
void UsePythonRules(rules::PythonRules which);

/// The rules file, or `base` where none is named, and what the other options add to it. kUsage: the
/// set names what there is not; kUnusable, kLimit: the file cannot be read.
Result<rules::RuleSet> RuleSetOf(const RuleFlags& flags, rules::RuleSet base = {});

/// The same over the rules that the run was started with, for a judgement by others. What is wrong
/// with the run itself is for its reader to say.
Result<rules::RuleSet> RuleSetOfRun(const RuleFlags& flags, const std::string& run);

/// The needs of the rules that were asked for by name; with `defaults`, of all that run. None where
/// the set says that they are not captured.
std::vector<rules::Need> NeedsOfAsked(rules::RuleSet set, bool defaults);

}  // namespace telltale::cli
