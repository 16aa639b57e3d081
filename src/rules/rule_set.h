// SPDX-License-Identifier: Apache-2.0
// Which rules run, with which parameters, and what each sets off: what a rules file, the flags of
// `telltale run` and SageMaker's vocabulary come down to. It is stored with the run (run.json,
// "rules"), so that a replay runs the same. docs/formats/rules.md.
//
// Thread safety: none of its own; a set is a value.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rules/registry.h"
#include "rules/rule.h"

namespace telltale::rules {

/// What a finding sets off; src/rules/actions/ knows the kinds.
struct ActionSpec {
  std::string kind;  ///< stop, webhook, email, sms, program, capture, profile.
  std::map<std::string, std::string> parameters;
  Severity from = Severity::kMedium;  ///< Findings below set nothing off.
  /// Only says what it would do. The default, since an action of a new rule should be seen once
  /// before it acts.
  bool dry_run = true;
  friend bool operator==(const ActionSpec&, const ActionSpec&) = default;
};

/// How a rule of the user's is written.
enum class RuleSource : std::uint8_t { kBuiltIn, kExpression, kPython };

struct RuleSpec {
  /// Of this instance, in findings and states; the rule's own where the user gave none.
  std::string name;
  RuleSource source = RuleSource::kBuiltIn;
  /// kBuiltIn: a name of the registry. kExpression: the expression. kPython: FILE.py:Class or
  /// module:Class.
  std::string rule;
  std::string preset;  ///< "" (the documentation's defaults) or "source".
  std::map<std::string, std::string> parameters;  ///< As people write them.
  std::vector<ActionSpec> actions;
  // Of kExpression alone:
  Severity severity = Severity::kMedium;
  std::string message, advice;
  friend bool operator==(const RuleSpec&, const RuleSpec&) = default;
};

struct RuleSet {
  bool defaults = true;             ///< Those of by_default, unless `off` names them.
  std::vector<std::string> off;     ///< Names of rules that do not run.
  std::vector<RuleSpec> rules;      ///< Beside the defaults; one of a default's name replaces it.
  std::vector<ActionSpec> actions;  ///< Of every rule that names none.
  /// What the rules need of tensors is added to the capture plan.
  bool capture = true;
  double price_per_hour = 0;  ///< Of the run's machines together; 0: not known.
  std::string currency = "USD";
  friend bool operator==(const RuleSet&, const RuleSet&) = default;
};

/// The rules that run, in the order of their names; those of kBuiltIn with all parameters checked.
/// kUsage: no such rule, parameter or preset; two of one name; says what to write instead.
Result<std::vector<RuleSpec>> Resolve(const RuleSet& set);

/// The parameters of a built-in rule. kUsage names the parameter.
Result<Parameters> ParametersOf(const RuleSpec& spec);

/// The set as a JSON object with the keys of a rules file (docs/formats/rules.md), for run.json and
/// requests; an empty text is a default set. kUsage says which key is wrong and what to write.
std::string ToJson(const RuleSet& set);
Result<RuleSet> RuleSetFromJson(std::string_view text);
/// A rules file. `where`: its name, for messages, which name the line.
Result<RuleSet> RuleSetFromToml(std::string_view text, std::string_view where);

/// `NAME[:parameter=value,...]` of --rule; a value in double quotes may hold commas.
Result<RuleSpec> ParseRule(std::string_view text);

/// One tensor need of an enabled rule, its parameters filled in.
struct Need {
  std::string rule;  ///< Instance that needs it.
  std::string collection;
  std::string include;              ///< RE2 or empty.
  std::string take;                 ///< "statistics", ...
  std::uint32_t interval = 100;     ///< Of TRAIN steps.
  std::uint32_t eval_interval = 0;  ///< Of EVAL steps; 0: it needs none of them.
  bool asked_only = false;
};
/// What one rule needs captured; nothing where it is none of the built-in ones.
std::vector<Need> NeedsOf(const RuleSpec& spec);
/// What the rules of a set need captured; of a rule that nobody names without what is captured only
/// where somebody does. REQUIRES: Resolve(set) is ok.
std::vector<Need> NeedsOf(const RuleSet& set);

}  // namespace telltale::rules
