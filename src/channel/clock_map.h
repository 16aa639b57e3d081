// SPDX-License-Identifier: Apache-2.0
// Ticks of a producer → CLOCK_MONOTONIC ns, by the header's anchor and the consumer's own readings.
//
// A time between two readings is interpolated, so its error is at most that of the readings; the
// newest interval is used where it is long enough, since the kernel bends CLOCK_MONOTONIC over
// hours (NTP) and the TSC does not. Thread safety: none.
#pragma once
#include <cstdint>
#include <optional>

#include "channel/ticks.h"

namespace telltale::channel {

class ClockMap {
 public:
  ClockMap() = default;
  /// `own`: a reading of the consumer's, used where the anchor is too near.
  ClockMap(ClockPair anchor, ClockPair own) : anchor_(anchor), own_(own), previous_(anchor) {}

  /// A new reading; the conversions that follow use it. Times must not go back.
  void Update(ClockPair now);
  /// Nothing for a time that cannot be: 30 years before the newest reading, or a minute after it.
  std::optional<std::int64_t> ToMonotonicNs(std::uint64_t ticks) const;
  double ns_per_tick() const { return slope_; }

 private:
  ClockPair anchor_, own_, previous_, now_;
  double slope_ = 1.0;       ///< Over the newest usable interval.
  double long_slope_ = 1.0;  ///< Since the anchor.
};

}  // namespace telltale::channel
