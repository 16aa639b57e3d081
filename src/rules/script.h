// SPDX-License-Identifier: Apache-2.0
// Runs a rule script: records written as text, fed in order to rules, and what is expected of their
// findings. The built-in rules are tested by it, and rules of the user's own can be.
// docs/formats/rule-scripts.md.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "rules/engine.h"

namespace telltale::rules {

struct ScriptOutcome {
  std::size_t expectations = 0;
  std::size_t failures = 0;  ///< Expectations that do not hold, and lines that make no sense.
  std::string text;          ///< Each failure with its line, and what the rules said instead.
};

/// `foreign`: makes rules of the user's own. kUnusable: the file cannot be read.
Result<ScriptOutcome> RunScript(const std::filesystem::path& file,
                                const Engine::ForeignMaker& foreign = nullptr);

}  // namespace telltale::rules
