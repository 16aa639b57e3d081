// SPDX-License-Identifier: Apache-2.0
#include "analysis/significance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace telltale::analysis {
namespace {

constexpr double kMostCorrelation = 0.3;
constexpr std::size_t kMostExact = 12;
constexpr std::uint64_t kSeed = 0x9e3779b97f4a7c15ULL;

std::vector<double> Means(const std::vector<double>& values, std::size_t length) {
  std::vector<double> out;
  for (std::size_t at = 0; at + length <= values.size(); at += length) {
    double sum = 0;
    for (std::size_t i = at; i < at + length; ++i) sum += values[i];
    out.push_back(sum / static_cast<double>(length));
  }
  return out;
}

/// How many of the orderings of m and n values have each U, from 0 to m n.
std::vector<double> Counts(std::size_t m, std::size_t n) {
  // Of i values of one side and j of the other; the largest of all is of one side or the other.
  std::vector<std::vector<std::vector<double>>> f(m + 1, std::vector<std::vector<double>>(n + 1));
  for (std::size_t i = 0; i <= m; ++i) {
    for (std::size_t j = 0; j <= n; ++j) {
      std::vector<double>& now = f[i][j];
      now.assign(i * j + 1, 0);
      if (i == 0 || j == 0) {
        now[0] = 1;
        continue;
      }
      for (std::size_t u = 0; u < f[i - 1][j].size(); ++u) now[u + j] += f[i - 1][j][u];
      for (std::size_t u = 0; u < f[i][j - 1].size(); ++u) now[u] += f[i][j - 1][u];
    }
  }
  return f[m][n];
}

/// Sebastiano Vigna's SplitMix64: the same everywhere, which <random>'s distributions are not.
std::uint64_t NextRandom(std::uint64_t* state) {
  *state += kSeed;
  std::uint64_t z = *state;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

std::vector<double> Resample(const std::vector<double>& values, std::uint64_t* state) {
  std::vector<double> out(values.size());
  for (double& one : out) one = values[NextRandom(state) % values.size()];
  return out;
}

}  // namespace

double MedianOfValues(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), values.begin() + half, values.end());
  const double upper = values[static_cast<std::size_t>(half)];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + half)) / 2;
}

double Lag1(const std::vector<double>& values) {
  if (values.size() < 3) return 0;
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double all = 0;
  double neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    all += (values[i] - mean) * (values[i] - mean);
    if (i > 0) neighbours += (values[i] - mean) * (values[i - 1] - mean);
  }
  return all > 0 ? neighbours / all : 0;
}

double Inflation(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  if (values.size() < 4) return 1;
  // What is left of the line of least squares.
  const double middle = (count - 1) / 2;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double along = 0;
  double square = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - middle;
    along += x * (values[i] - mean);
    square += x * x;
  }
  const double slope = along / square;
  std::vector<double> left(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    left[i] = values[i] - mean - slope * (static_cast<double>(i) - middle);
  }
  // Rounding alone is left of a line.
  const double largest = std::abs(*std::max_element(
      left.begin(), left.end(), [](double x, double y) { return std::abs(x) < std::abs(y); }));
  if (largest <= 1e-9 * std::abs(mean)) return 1;
  const double r = std::min(Lag1(left), 0.95);
  return r > kMostCorrelation ? (1 + r) / (1 - r) : 1;
}

std::vector<double> Blocks(std::vector<double> values, std::size_t most, std::size_t fewest) {
  if (values.size() <= fewest) return values;
  if (values.size() > most) values = Means(values, (values.size() + most - 1) / most);
  while (values.size() / 2 >= fewest && Lag1(values) > kMostCorrelation) values = Means(values, 2);
  return values;
}

double MannWhitney(const std::vector<double>& a, const std::vector<double>& b, double inflation) {
  if (a.empty() || b.empty()) return 1;
  struct Value {
    double value;
    bool of_a;
  };
  std::vector<Value> all;
  for (const double value : a) all.push_back({value, true});
  for (const double value : b) all.push_back({value, false});
  std::sort(all.begin(), all.end(),
            [](const Value& x, const Value& y) { return x.value < y.value; });
  const auto m = static_cast<double>(a.size());
  const auto n = static_cast<double>(b.size());
  const double count = m + n;
  double rank_sum = 0;  // Of a.
  double ties = 0;      // Sum of t³ − t.
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i;
    while (end < all.size() && all[end].value == all[i].value) ++end;
    const auto tied = static_cast<double>(end - i);
    // Ranks count from 1; equal values share the mean of theirs.
    const double rank = (static_cast<double>(i + 1) + static_cast<double>(end)) / 2;
    for (; i < end; ++i) {
      if (all[i].of_a) rank_sum += rank;
    }
    ties += tied * tied * tied - tied;
  }
  const double u = rank_sum - m * (m + 1) / 2;
  const double smaller = std::min(u, m * n - u);
  if (inflation <= 1 && ties == 0 && a.size() <= kMostExact && b.size() <= kMostExact) {
    const std::vector<double> counts = Counts(a.size(), b.size());
    double tail = 0;
    double total = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      if (static_cast<double>(i) <= smaller) tail += counts[i];
    }
    return std::min(1.0, 2 * tail / total);
  }
  const double variance =
      m * n / 12 * (count + 1 - ties / (count * (count - 1))) * std::max(1.0, inflation);
  if (variance <= 0) return 1;
  const double z = std::max(0.0, m * n / 2 - smaller - 0.5) / std::sqrt(variance);
  return std::min(1.0, std::erfc(z / std::sqrt(2.0)));
}

double CliffsDelta(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || b.empty()) return 0;
  double sum = 0;
  for (const double x : a) {
    for (const double y : b) sum += y > x ? 1 : y < x ? -1 : 0;
  }
  return sum / (static_cast<double>(a.size()) * static_cast<double>(b.size()));
}

Interval RatioInterval(const std::vector<double>& a, const std::vector<double>& b,
                       std::size_t resamples) {
  std::uint64_t state = kSeed;
  std::vector<double> ratios;
  ratios.reserve(resamples);
  for (std::size_t i = 0; i < resamples; ++i) {
    const double below = MedianOfValues(Resample(a, &state));
    const double above = MedianOfValues(Resample(b, &state));
    if (below > 0) ratios.push_back(above / below);
  }
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double q) {
    return ratios[static_cast<std::size_t>(q * static_cast<double>(ratios.size() - 1))];
  };
  return {at(0.025), at(0.975)};
}

std::vector<double> Holm(const std::vector<double>& p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return p[x] < p[y]; });
  std::vector<double> out(p.size(), 1);
  double before = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    before = std::max(before, std::min(1.0, p[order[i]] * static_cast<double>(p.size() - i)));
    out[order[i]] = before;
  }
  return out;
}

}  // namespace telltale::analysis
