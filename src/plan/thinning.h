// SPDX-License-Identifier: Apache-2.0
// How far the governor has thinned a plan, and the order in which it gives things up
// (docs/guide/governor.md).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/capture_plan.h"

namespace telltale::plan {

/// Of a rule, by tt_mode: what was asked for by name is stretched so many times at most and loses
/// nothing of what is taken. 0: it is thinned as all others.
using Kept = std::array<std::uint32_t, 4>;

struct Thinning {
  std::uint32_t stretch = 1;  ///< Every interval is so many times the plan's.
  std::uint32_t shed = 0;     ///< So many of kShedOrder are not taken any more.
  std::vector<Kept> kept;     ///< By rule; empty: of none.

  std::uint32_t StretchOf(std::size_t rule, std::size_t mode) const {
    const std::uint32_t most = rule < kept.size() ? kept[rule][mode] : 0;
    return most == 0 || stretch < most ? stretch : most;
  }
  bool Sheds(std::size_t rule) const {
    return shed > 0 && (rule >= kept.size() || kept[rule] == Kept{});
  }

  friend bool operator==(const Thinning&, const Thinning&) = default;
};

inline constexpr std::array<std::string_view, 5> kShedOrder = {
    "values", "histograms", "more reductions",
    "collections other than weights, biases, gradients and losses", "statistics and shapes"};

/// TT_TAKE_ bits that are left; `core`: of weights, biases, gradients and losses.
constexpr std::uint32_t Allowed(std::uint32_t shed, bool core) {
  if (shed >= 5 || (shed >= 4 && !core)) return 0;
  std::uint32_t bits = ~0U;
  if (shed >= 1) bits &= ~kRaw;
  if (shed >= 2) bits &= ~kHistogram;
  if (shed >= 3) bits &= ~kMore;
  return bits;
}

/// The interval that a stretched rule has.
constexpr std::uint32_t Stretched(std::uint32_t interval, std::uint32_t stretch) {
  const std::uint64_t wide = static_cast<std::uint64_t>(interval) * stretch;
  return wide > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(wide);
}

/// One thing that the plan takes of some tensors.
struct PlannedRule {
  std::uint32_t take = 0;
  std::uint32_t max_elements = 0;
  std::array<When, 4> when;
  bool core = false;   ///< Of nothing but weights, biases, gradients and losses.
  bool asked = false;  ///< By name.

  friend bool operator==(const PlannedRule&, const PlannedRule&) = default;
};

/// TT_TAKE_ bits that a rule of the plan still takes.
inline std::uint32_t Left(const Thinning& thinning, const PlannedRule& rule, std::size_t which) {
  return thinning.Sheds(which) ? rule.take & Allowed(thinning.shed, rule.core) : rule.take;
}

}  // namespace telltale::plan
