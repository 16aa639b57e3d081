// SPDX-License-Identifier: Apache-2.0
// When the machine is sampled: at a steady pace, for rates over the time between two samples. What
// was missed is not made up for, and none follows right after a late one: a rate over a few
// milliseconds says nothing.
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace telltale::agent {

class SampleSchedule {
 public:
  /// The first is due at once. `clock` outlives it.
  explicit SampleSchedule(std::int64_t interval_ns, const Clock* clock = &Clock::System())
      : interval_ns_(interval_ns), clock_(clock), next_ns_(clock->MonotonicNs()) {}

  /// True: take one now. Two are never nearer to each other than half of the interval.
  bool Due() {
    const std::int64_t now = clock_->MonotonicNs();
    if (now < next_ns_) return false;
    const bool late = now - next_ns_ > interval_ns_ / 2;
    next_ns_ = (late ? now : next_ns_) + interval_ns_;
    return true;
  }
  /// CLOCK_MONOTONIC from which on one is due.
  std::int64_t next_ns() const { return next_ns_; }

 private:
  const std::int64_t interval_ns_;
  const Clock* const clock_;
  std::int64_t next_ns_;
};

}  // namespace telltale::agent
