// SPDX-License-Identifier: Apache-2.0
// Quantiles of a stream in bounded memory: counts in logarithmic buckets (the idea of DDSketch), so
// any quantile is within 1 % of a value that occurred; count, sum, min and max are exact.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>

namespace telltale::analysis {

class Quantiles {
 public:
  /// Values that are not finite are counted apart.
  void Add(double value) {
    if (!std::isfinite(value)) {
      ++not_finite_;
      return;
    }
    ++count_;
    sum_ += value;
    if (value < min_) min_ = value;
    if (value > max_) max_ = value;
    ++buckets_[Key(value)];
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t not_finite() const { return not_finite_; }
  double sum() const { return sum_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  double min() const { return count_ == 0 ? 0 : min_; }
  double max() const { return count_ == 0 ? 0 : max_; }

  /// Nearest rank; 0 where nothing was added.
  double At(double q) const {
    if (count_ == 0) return 0;
    if (q <= 0) return min_;
    if (q >= 1) return max_;
    const auto rank = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (const auto& [key, count] : buckets_) {
      seen += count;
      if (seen >= rank && seen > 0) return Clamp(Value(key));
    }
    return max_;
  }

  /// Calls f(lower bound, upper bound, count) for each bucket in order of value.
  template <class F>
  void ForEachBucket(F&& f) const {
    for (const auto& [key, count] : buckets_) f(Value(key), count);
  }

 private:
  static constexpr double kLogGamma = 0.0198026;  // ln 1.02
  static constexpr double kSmallest = 1e-12;      // Below this a value is zero.
  // Values are taken to and from keys by logarithms: of the largest ones the quotient by kSmallest
  // is no finite number.
  static constexpr double kLogSmallest = -27.631021115928547;

  static int Key(double value) {
    const double magnitude = std::abs(value);
    if (magnitude < kSmallest) return 0;
    const double over = std::log(magnitude) - kLogSmallest;
    const int key = static_cast<int>(std::ceil(over / kLogGamma)) + 1;
    return value > 0 ? key : -key;
  }
  static double Value(int key) {
    if (key == 0) return 0;
    const double magnitude = std::exp((std::abs(key) - 1.5) * kLogGamma + kLogSmallest);
    return key > 0 ? magnitude : -magnitude;
  }
  double Clamp(double value) const { return value < min_ ? min_ : (value > max_ ? max_ : value); }

  std::uint64_t count_ = 0;
  std::uint64_t not_finite_ = 0;
  double sum_ = 0;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  std::map<int, std::uint64_t> buckets_;
};

}  // namespace telltale::analysis
