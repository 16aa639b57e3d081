// SPDX-License-Identifier: Apache-2.0
// Difference of a kernel counter between two readings.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>

namespace telltale::collect {

/// What the counter grew by. One that stands below its last value has wrapped where it was in the
/// upper half of 32 bits and the way round is short (the kernel keeps several of these counters in
/// 32 bits); otherwise it was reset, and what it grew by is not known.
inline std::optional<std::uint64_t> CounterDelta(std::uint64_t before, std::uint64_t now) {
  if (now >= before) return now - before;
  constexpr std::uint64_t kRange = 1ULL << 32;
  constexpr std::uint64_t kHalf = kRange / 2;
  if (before < kRange && before >= kHalf && now < kHalf) return now + kRange - before;
  return std::nullopt;
}

/// One counter from sample to sample.
class RateCounter {
 public:
  /// Growth per second since the reading before. None at the first, where no time has passed, and
  /// where the counter was reset, which is counted in `resets`.
  std::optional<double> Advance(std::uint64_t value, std::int64_t now_ns, std::uint64_t* resets) {
    const auto delta = CounterDelta(std::exchange(value_, value), value);
    const double seconds = static_cast<double>(now_ns - std::exchange(time_ns_, now_ns)) * 1e-9;
    if (!std::exchange(has_base_, true) || seconds <= 0) return std::nullopt;
    if (!delta) {
      ++*resets;
      return std::nullopt;
    }
    return static_cast<double>(*delta) / seconds;
  }

 private:
  bool has_base_ = false;
  std::uint64_t value_ = 0;
  std::int64_t time_ns_ = 0;
};

}  // namespace telltale::collect
