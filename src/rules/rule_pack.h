// SPDX-License-Identifier: Apache-2.0
// Rules as files: one rules file, or a pack: a folder with rules.toml and the Python files that it
// names. docs/guide/custom-rules.md.
#pragma once
#include <filesystem>

#include "base/status.h"
#include "rules/rule_set.h"

namespace telltale::rules {

/// The rules file that `path` means: of a folder its rules.toml.
std::filesystem::path RulesFileOf(const std::filesystem::path& path);

/// What a set that was read from `file` still needs: Python files, relative to that file, become
/// absolute, since the set goes into the run; expressions are parsed, so that a wrong one is
/// refused here and not in the middle of a run. kUsage: what is wrong, with the rule's name.
Status CompleteRules(const std::filesystem::path& file, RuleSet* set);

}  // namespace telltale::rules
