// SPDX-License-Identifier: Apache-2.0
// The one list of findings: which of them are about one thing, and their order. Every face of a run
// (terminal, JSON, report, page, metrics, actions) shows this list; its first entry is the title.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "rules/engine.h"

namespace telltale::rules {

/// Of the time that its group lost, the seconds that the cause of this finding explains, in its
/// evidence: where two rules of a theme may each be the other's cause, both say it.
inline constexpr const char* kExplainsSeconds = "explains_seconds";

/// Findings about one thing: those of one theme that overlap in time. First in a group stands the
/// finding that explains the others (SmallReads before InputBound before LowGPUUtilization); of
/// rules that say kExplainsSeconds, the one that explains the most comes first.
/// Groups come in this order: how the run ended; then by the severest member; those that last
/// before those that are over; wrong results before slow ones; then cost.
std::vector<std::vector<std::size_t>> Groups(std::span<const Finding> findings);

/// The findings in the order of their groups.
std::vector<Finding> Ranked(std::vector<Finding> findings);

}  // namespace telltale::rules
