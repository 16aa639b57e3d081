// SPDX-License-Identifier: Apache-2.0
// Rules as files: one rules file, or a pack: a folder with rules.toml and the Python files that it
// names. docs/guide/custom-rules.md.
#pragma once
#include <filesystem>

#include "base/status.h"
#include "rules/rule_set.h"

namespace telltale::rules {

/// The set of a rules file, or of FOLDER/rules.toml. Files of Python rules are relative to it and
/// come back absolute; expressions are parsed, a wrong one is refused here and not in the middle of
/// a run. kUnusable: it cannot be read; kUsage: what is wrong, with file and line.
Result<RuleSet> LoadRules(const std::filesystem::path& path);

}  // namespace telltale::rules
