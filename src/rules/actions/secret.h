// SPDX-License-Identifier: Apache-2.0
// Secrets of actions: named in a rules file by a variable of the environment or a file, never
// written there, so never in run.json, the journal or a page. Thread safety: stateless; nobody sets
// variables in the watcher.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rules/rule_set.h"

namespace telltale::rules {

/// What PREFIX_env or PREFIX_file names; empty where neither is given or the variable is not set. A
/// file's last line break is not part of it. kUsage: the file cannot be read, or what is there
/// holds a control character.
Result<std::string> Secret(const ActionSpec& spec, std::string_view prefix);
/// The parameter, else the first of these variables that is set, else "".
std::string TextOrVariable(const ActionSpec& spec, std::string_view name,
                           std::initializer_list<const char*> variables);

}  // namespace telltale::rules
