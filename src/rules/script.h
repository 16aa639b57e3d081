// SPDX-License-Identifier: Apache-2.0
// Runs a rule script: records written as text, fed in order to rules, and what is expected of their
// findings. The built-in rules are tested by it, and rules of the user's own can be.
// docs/formats/rule-scripts.md.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "rules/engine.h"

namespace telltale::rules {

struct ScriptOutcome {
  std::size_t expectations = 0;
  std::size_t failures = 0;        ///< Expectations that do not hold, and lines that make no sense.
  std::string text;                ///< Each failure with its line, and what the rules said instead.
  std::vector<Finding> revisions;  ///< Of all findings, in the order in which they came to be.
  std::vector<RuleState> states;   ///< At the end.
};

/// For tests of the engine itself.
struct ScriptOptions {
  /// Instead of those that the script names.
  std::optional<RuleSet> rules;
  /// Each record alone, and not those that stand together at once.
  bool one_by_one = false;
  /// Sees the records before the rules do; valid during the call.
  std::function<void(std::span<const store::OrderedRecord>)> records;
};

/// `foreign`: makes rules of the user's own. kUnusable: the file cannot be read.
Result<ScriptOutcome> RunScript(const std::filesystem::path& file,
                                const Engine::ForeignMaker& foreign = nullptr,
                                const ScriptOptions& options = {});

}  // namespace telltale::rules
