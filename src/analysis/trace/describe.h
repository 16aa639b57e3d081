// SPDX-License-Identifier: Apache-2.0
// Count, mean, deviation and quartiles of values, as pandas' describe(): deviation of a sample
// (n − 1), quartiles by linear interpolation.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace telltale::analysis::trace {

struct Description {
  std::uint64_t count = 0;
  double sum = 0;
  double mean = 0;
  double std = 0;  ///< 0 of fewer than two.
  double min = 0;
  double q25 = 0;
  double median = 0;
  double q75 = 0;
  double max = 0;
};

/// REQUIRES: sorted, not empty.
inline double QuantileOfSorted(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  if (low + 1 >= sorted.size()) return sorted.back();
  return sorted[low] + (sorted[low + 1] - sorted[low]) * (at - static_cast<double>(low));
}

inline Description Describe(std::vector<double> values) {
  Description out;
  out.count = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  for (const double v : values) out.sum += v;
  const auto n = static_cast<double>(values.size());
  out.mean = out.sum / n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  out.std = values.size() > 1 ? std::sqrt(squares / (n - 1)) : 0;
  out.min = values.front();
  out.q25 = QuantileOfSorted(values, 0.25);
  out.median = QuantileOfSorted(values, 0.5);
  out.q75 = QuantileOfSorted(values, 0.75);
  out.max = values.back();
  return out;
}

/// The same without quartiles, in one pass and constant memory (Welford).
class Moments {
 public:
  void Add(double value) {
    ++count_;
    sum_ += value;
    const double delta = value - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (value - mean_);
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  double mean() const { return mean_; }
  double min() const { return count_ == 0 ? 0 : min_; }
  double max() const { return count_ == 0 ? 0 : max_; }
  double std() const {
    return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
  }

 private:
  std::uint64_t count_ = 0;
  double sum_ = 0;
  double mean_ = 0;
  double squares_ = 0;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
};

}  // namespace telltale::analysis::trace
