// SPDX-License-Identifier: Apache-2.0
// The engine of a run: with the rules that the run was started with, bound to its values. Watcher,
// replay and live page make theirs here, so that all say the same.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/engine.h"
#include "rules/rule_set.h"
#include "rules/run_values.h"
#include "store/run_info.h"

namespace telltale::rules {

struct RunEngine {
  /// Before the engine: its rules hold it until their end. Follow the cursor before the first Feed.
  std::unique_ptr<RunValues> values;
  Engine engine{std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>>()};
  /// Why the rules are those that run by default, and not those of the run: a set that a newer
  /// telltale has written, a damaged one. Empty where they are the run's.
  std::string trouble;
  RuleSet set;  ///< That the engine was made of.
};

/// `other`: instead of the run's own set; kUsage where it names what there is not. What is wrong
/// with the run's own is told in `trouble`: a run can always be judged.
Result<RunEngine> EngineOf(const std::filesystem::path& run, const store::RunInfo& info,
                           const std::optional<RuleSet>& other = std::nullopt);

/// Who makes rules that are none of the registry; set once at the start of a program that runs
/// them. Without it such rules are in the engine with an error.
void SetForeignMaker(Engine::ForeignMaker maker);
/// Null where none was set.
const Engine::ForeignMaker& ForeignMaker();

}  // namespace telltale::rules
