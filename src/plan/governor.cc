// SPDX-License-Identifier: Apache-2.0
#include "plan/governor.h"

#include <algorithm>
#include <limits>

namespace telltale::plan {
namespace {

/// A window holds at least so many intervals, so that a step with statistics weighs what it should.
constexpr std::int64_t kMinIntervals = 3;
constexpr std::int64_t kMinWindowNs = 5'000'000'000;
constexpr std::uint32_t kMaxStretch = 1024;
constexpr std::uint32_t kMaxInterval = std::numeric_limits<std::uint32_t>::max();
/// The interval is taken back only where twice the cost would still leave this part of the budget.
constexpr double kRoom = 0.8;

}  // namespace

std::optional<Governor::Decision> Governor::Add(std::int64_t duration_ns, std::int64_t probe_ns) {
  ++steps_;
  duration_ns_ += std::max<std::int64_t>(duration_ns, 0);
  probe_ns_ += std::max<std::int64_t>(probe_ns, 0);
  // Whole intervals, so that the share does not depend on where a window begins.
  const std::int64_t interval = std::max<std::int64_t>(interval_, 1);
  if (steps_ % interval != 0 || steps_ < kMinIntervals * interval || duration_ns_ < kMinWindowNs) {
    return {};
  }
  const double share = static_cast<double>(probe_ns_) / static_cast<double>(duration_ns_);
  steps_ = duration_ns_ = probe_ns_ = 0;
  const bool widest =
      planned_ == 0 || interval_ / planned_ >= kMaxStretch || interval_ > kMaxInterval / 2;
  std::uint32_t next = interval_;
  bool exceeded = false;
  if (share > budget_) {
    exceeded = widest;
    if (!widest) next = interval_ * 2;
  } else if (interval_ > planned_ && share * 2 < budget_ * kRoom) {
    next = std::max(interval_ / 2, planned_);
  }
  const bool found = exceeded && !exceeded_;
  if (exceeded) {
    exceeded_ = true;
  } else if (share < budget_ * kRoom) {
    exceeded_ = false;
  }
  if (next == interval_ && !found) return {};
  interval_ = next;
  return Decision{next, share, exceeded};
}

}  // namespace telltale::plan
