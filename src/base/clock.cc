// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace telltale {
namespace {

std::int64_t ReadNs(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class SystemClock final : public Clock {
 public:
  std::int64_t MonotonicNs() const override { return ReadNs(CLOCK_MONOTONIC); }
  std::int64_t RealtimeNs() const override { return ReadNs(CLOCK_REALTIME); }
};

}  // namespace

const Clock& Clock::System() {
  static const SystemClock clock;
  return clock;
}

}  // namespace telltale
