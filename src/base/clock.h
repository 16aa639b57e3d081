// SPDX-License-Identifier: Apache-2.0
// Clocks. Durations and order come from CLOCK_MONOTONIC only; the wall clock enters once, as the
// offset of RunClock. Tests inject a FakeClock.
#pragma once
#include <cstdint>

namespace telltale {

class Clock {
 public:
  virtual ~Clock() = default;
  /// CLOCK_MONOTONIC, ns.
  virtual std::int64_t MonotonicNs() const = 0;
  /// CLOCK_REALTIME, ns since the Unix epoch.
  virtual std::int64_t RealtimeNs() const = 0;

  /// The machine's clocks. Thread-safe.
  static const Clock& System();
};

class FakeClock final : public Clock {
 public:
  std::int64_t MonotonicNs() const override { return monotonic_ns; }
  std::int64_t RealtimeNs() const override { return realtime_ns; }
  void Advance(std::int64_t ns) {
    monotonic_ns += ns;
    realtime_ns += ns;
  }
  std::int64_t monotonic_ns = 1'000'000'000;
  std::int64_t realtime_ns = 1'700'000'000'000'000'000;
};

}  // namespace telltale
