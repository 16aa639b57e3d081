// SPDX-License-Identifier: Apache-2.0
// Whether two series of measurements differ by more than chance. Measurements of one run follow
// each other: a slow moment lasts for several steps. So not steps are compared but means of blocks
// of consecutive ones, made longer until neighbours no longer resemble each other; on these the
// Mann-Whitney test, which asks nothing of their distribution, and a bootstrap for the interval.
// Deterministic: the bootstrap's numbers come from a fixed seed.
#pragma once
#include <cstddef>
#include <vector>

namespace telltale::analysis {

/// Pearson's correlation of neighbours; 0 of fewer than three values, and where all are equal.
double Lag1(const std::vector<double>& values);

/// Means of equal runs of neighbours: at most `most` blocks, and as long as neighbours correlate by
/// more than 0.3 half as many, but not fewer than `fewest`. What does not fill the last block is
/// left out. Fewer values than that are given back as they are.
std::vector<double> Blocks(std::vector<double> values, std::size_t most, std::size_t fewest);

/// How much larger the variance of a mean of these is than of as many independent ones, where
/// neighbours still correlate by more than 0.3 (r: (1 + r) / (1 − r)); else 1. What follows a line
/// is no correlation: a trend widens both sides of a test as it is.
double Inflation(const std::vector<double>& values);

/// Two-sided p of the Mann-Whitney U test: exact where both sides are at most 12 long and no two
/// values are equal, else by the normal approximation with correction for ties and continuity. 1
/// where a side is empty or all values are equal. `inflation` above 1: by the approximation, its
/// variance so many times as large.
double MannWhitney(const std::vector<double>& a, const std::vector<double>& b,
                   double inflation = 1);

/// Cliff's delta: how much more often a value of b is above one of a than below, −1 to 1. 0 where a
/// side is empty.
double CliffsDelta(const std::vector<double>& a, const std::vector<double>& b);

struct Interval {
  double low = 0;
  double high = 0;
};
inline constexpr std::size_t kResamples = 2000;
/// 95 % of the ratio of medians b / a, by so many bootstrap samples of the blocks of either side.
/// REQUIRES: neither is empty, the medians are above zero.
Interval RatioInterval(const std::vector<double>& a, const std::vector<double>& b,
                       std::size_t resamples = kResamples);

/// Of an even number the mean of the middle two; 0 where there is none.
double MedianOfValues(std::vector<double> values);

/// Holm's correction of several p values together, in the order given.
std::vector<double> Holm(const std::vector<double>& p);

}  // namespace telltale::analysis
