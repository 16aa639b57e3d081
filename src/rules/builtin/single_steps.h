// SPDX-License-Identifier: Apache-2.0
// What rules share that judge steps one by one: how much longer a step must take before it counts,
// and whether one step was recorded right after another.
#pragma once
#include <cstdint>

namespace telltale::rules {

/// A single step counts where it takes longer than the others by this much, whatever share of it
/// that is. An interrupt, a page fault or a thread of the kernel takes less than this from any
/// program, and makes most of the difference between steps of microseconds: a rule that told of it
/// would blame the program for the machine. Rules that judge sums or medians over many steps need
/// no such limit. Spans of the framework's callbacks and loggers are recorded from 1 ms on too.
///
/// It bounds the work of these rules: at most a thousand steps a second of the run can count,
/// however many steps there are.
inline constexpr double kLeastLongerNs = 1e6;

/// Whether no step is missing between the two: the probe counts the steps of a process one by one.
/// Where steps are missing, since their records were dropped, the time between the two is theirs.
inline bool Follows(std::int64_t step, std::int64_t before) { return step == before + 1; }

}  // namespace telltale::rules
