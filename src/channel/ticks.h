// SPDX-License-Identifier: Apache-2.0
// The channel's clock: TSC ticks where the TSC is invariant and the kernel itself trusts it, else
// CLOCK_MONOTONIC in ns. Both sides of a channel read it with the kind that its header names.
#pragma once
#include <time.h>

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "format/channel_layout.h"

namespace telltale::channel {

inline std::int64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

inline std::uint64_t Ticks(format::ClockKind kind) {
#if defined(__x86_64__)
  if (kind == format::ClockKind::kTsc) return __rdtsc();
#else
  (void)kind;
#endif
  return static_cast<std::uint64_t>(MonotonicNs());
}

/// The best clock of this machine. Reads /sys; call it once.
format::ClockKind DetectClock();

struct ClockPair {
  std::uint64_t ticks = 0;
  std::int64_t monotonic_ns = 0;
};

/// Both clocks as near together as a few tries get them (some tens of ns).
ClockPair ReadClockPair(format::ClockKind kind);

}  // namespace telltale::channel
