// SPDX-License-Identifier: Apache-2.0
// Sets of times as sorted intervals [begin, end) that do not touch.
#pragma once
#include <cstdint>
#include <vector>

#include "interchange/chrome/block_parser.h"

namespace telltale::interchange {

using IntervalSet = std::vector<ChromeInterval>;

/// Any intervals as a set; those that are empty go.
IntervalSet ToSet(std::vector<ChromeInterval> intervals);
/// What of `set` lies within [begin, end).
IntervalSet Within(const IntervalSet& set, std::int64_t begin_ns, std::int64_t end_ns);
/// What of `a` is not in `b`.
IntervalSet Without(const IntervalSet& a, const IntervalSet& b);
std::int64_t LengthOf(const IntervalSet& set);

}  // namespace telltale::interchange
