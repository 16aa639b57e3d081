// SPDX-License-Identifier: Apache-2.0
#include "channel/clock_map.h"

#include <cmath>

namespace telltale::channel {
namespace {

/// Below it the error of the readings (some 50 ns) would tilt the slope.
constexpr std::int64_t kMinBaselineNs = 5'000'000;
constexpr double kMaxNs = 1e18;
/// Records were made before the newest reading; clocks of processor sockets may differ a little.
constexpr double kMaxAheadNs = 60e9;

bool LongEnough(const ClockPair& from, const ClockPair& to) {
  return to.ticks > from.ticks && to.monotonic_ns - from.monotonic_ns >= kMinBaselineNs;
}

double Slope(const ClockPair& from, const ClockPair& to) {
  return static_cast<double>(to.monotonic_ns - from.monotonic_ns) /
         static_cast<double>(to.ticks - from.ticks);
}

}  // namespace

void ClockMap::Update(ClockPair now) {
  if (LongEnough(now_, now) && now_.ticks != 0) previous_ = now_;
  now_ = now;
  if (LongEnough(anchor_, now)) {
    long_slope_ = Slope(anchor_, now);
  } else if (LongEnough(own_, now)) {
    long_slope_ = Slope(own_, now);
  } else if (now.ticks > anchor_.ticks && now.monotonic_ns > anchor_.monotonic_ns) {
    long_slope_ = Slope(anchor_, now);  // Short, but all records lie between the two.
  }
  slope_ = LongEnough(previous_, now) ? Slope(previous_, now) : long_slope_;
}

std::optional<std::int64_t> ClockMap::ToMonotonicNs(std::uint64_t ticks) const {
  // Signed distance from the newest reading; wraps are far out of range either way.
  const auto distance = static_cast<double>(static_cast<std::int64_t>(ticks - now_.ticks));
  const double ns = distance * (ticks >= previous_.ticks ? slope_ : long_slope_);
  if (!(ns > -kMaxNs && ns < kMaxAheadNs)) return std::nullopt;
  return now_.monotonic_ns + std::llround(ns);
}

}  // namespace telltale::channel
