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

/// The names of rules, in the evidence of a finding that is only what follows where one of them has
/// a finding of medium or high about the same training, for half of its time at least.
inline constexpr const char* kExplainedBy = "explained_by";

/// Likewise the other way round: the rules whose findings follow from this one.
inline constexpr const char* kExplains = "explains";

/// Findings about one thing: those of one theme that overlap in time. First in a group stands the
/// finding that explains the others (SmallReads before InputBound before LowGPUUtilization); of
/// rules that say kExplainsSeconds, the one that explains the most comes first. What follows
/// from another finding joins the group of its cause, whatever its theme, and stands right behind
/// its cause. Groups come in this order: how the run ended; then by the severest member; those that
/// last before those that are over; wrong results before slow ones; then cost.
std::vector<std::vector<std::size_t>> Groups(std::span<const Finding> findings);

/// The findings in the order of their groups. A cause is as severe as what follows from it, and
/// what follows gives no advice of its own: its cause does.
/// Of more than kMostRanked some are left out, `left_out` says how many: each rule first has an
/// equal share of half of the places, for those of its findings that rank highest by themselves;
/// then the causes of these; the rest of the places go by rank alone.
inline constexpr std::size_t kMostRanked = 500;
std::vector<Finding> Ranked(std::vector<Finding> findings, std::size_t* left_out = nullptr);

}  // namespace telltale::rules
