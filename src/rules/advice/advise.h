// SPDX-License-Identifier: Apache-2.0
// Everything that a run's trace and its other tables give reason to advise: the checks of
// checks.inc over the facts of the trace, and the rules about speed over the run's records, as one
// ranked list of findings. docs/guide/advise.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rules/advice/check.h"
#include "rules/replay.h"

namespace telltale::rules::advice {

/// All checks, by name.
std::span<const Check* const> Checks();
const Check* FindCheck(std::string_view name);

struct AdviseOptions {
  std::vector<std::int32_t> ranks;  ///< Of the trace; empty: all.
  std::vector<std::string> checks;  ///< Only these; empty: all.
  bool rules = true;                ///< The engine's rules about speed too.
};

struct Advice {
  std::vector<Finding> findings;      ///< Ranked.
  std::size_t findings_left_out = 0;  ///< Beyond kMostRanked.
  std::vector<RuleState> checks;      ///< Checks, then rules.
  std::size_t steps = 0;              ///< Of the trace, of the rank that has most.
  std::size_t ranks = 0;
  double wall_seconds = 0;  ///< Of these steps.
  std::vector<std::string> notes;
  store::Salvage salvage;
};

/// Of facts alone: what the checks find, and their states.
Advice AdviseOn(const RunFacts& facts, const std::vector<std::string>& checks = {});

/// kUsage: no such check or rank; kUnusable: no run.
Result<Advice> Advise(const std::filesystem::path& run, const AdviseOptions& options = {});

/// Adds advice to what rules found, as one ranked list, and the states of the checks to those of
/// the rules.
void AddAdvice(Advice advice, Replay* replay);

/// Adds what the checks find in the run's trace to what its rules found, as one ranked list, and
/// the states of the checks to those of the rules. A run without a trace stays as it is.
Status AddAdvice(const std::filesystem::path& run, Replay* replay);

}  // namespace telltale::rules::advice
