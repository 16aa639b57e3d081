// SPDX-License-Identifier: Apache-2.0
// What readings may cost for which the kernel walks through all pages of a process: it takes some
// 10 ms a GiB, and kernels before 5.10 let the process map no memory meanwhile.
#pragma once
#include <algorithm>
#include <cstdint>

namespace telltale::collect {

/// Of all processes together: 1 % of a core, and one reading no longer than kLongestNs, as far as
/// the long ones so far tell.
class ReadingBudget {
 public:
  static constexpr std::int64_t kPauseFactor = 100;
  /// After a time without readings they may take so long at once.
  static constexpr std::int64_t kAtOnceNs = 20'000'000;
  /// One that takes this long says how long larger ones would.
  static constexpr std::int64_t kLongNs = 20'000'000;
  static constexpr std::int64_t kLongestNs = 640'000'000;

  /// Whether a reading of a process with so much resident memory may begin.
  bool Allows(std::int64_t now_ns, double bytes) const {
    return now_ns >= free_ns_ && bytes * ns_per_byte_ <= static_cast<double>(kLongestNs);
  }
  /// One that began at `now_ns` has taken so long. Returns the pause that this costs.
  std::int64_t Take(std::int64_t now_ns, double bytes, std::int64_t cost_ns) {
    if (cost_ns >= kLongNs && bytes > 0) ns_per_byte_ = static_cast<double>(cost_ns) / bytes;
    const std::int64_t pause_ns = cost_ns * kPauseFactor;
    free_ns_ = std::max(free_ns_, now_ns - kAtOnceNs * kPauseFactor) + pause_ns;
    return pause_ns;
  }

 private:
  std::int64_t free_ns_ = INT64_MIN;
  double ns_per_byte_ = 1e7 / 1073741824;
};

}  // namespace telltale::collect
