// SPDX-License-Identifier: Apache-2.0
// What is read more rarely than with each sample.
#pragma once
#include <cstdint>

namespace telltale::collect {

class Period {
 public:
  explicit Period(std::int64_t period_ns) : period_ns_(period_ns) {}

  /// True at the first call, and where the period has passed since the last time that it was. A
  /// sample that comes a little early counts, or every other one would be a whole interval late.
  bool Due(std::int64_t now_ns) {
    if (now_ns < due_ns_) return false;
    due_ns_ = now_ns + period_ns_ - period_ns_ / 16;
    return true;
  }
  /// The next call is true.
  void Reset() { due_ns_ = INT64_MIN; }

 private:
  std::int64_t period_ns_;
  std::int64_t due_ns_ = INT64_MIN;
};

/// Of the metrics that docs/metrics.md marks "slowly".
inline constexpr std::int64_t kSlowPeriodNs = 1'000'000'000;

}  // namespace telltale::collect
