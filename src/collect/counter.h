// SPDX-License-Identifier: Apache-2.0
// Difference of a kernel counter between two readings.
#pragma once
#include <cstdint>
#include <optional>

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

}  // namespace telltale::collect
