// SPDX-License-Identifier: Apache-2.0
#include "channel/ticks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace telltale::channel {

format::ClockKind DetectClock() {
#if defined(__x86_64__)
  // CPUID 8000_0007h EDX bit 8: constant rate and never stopping, on Intel and AMD.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & (1U << 8)) == 0) {
    return format::ClockKind::kMonotonicNs;
  }
  // The kernel drops the TSC where it found it unsynchronised between cores.
  const int fd = ::open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                        O_RDONLY | O_CLOEXEC);
  if (fd < 0) return format::ClockKind::kMonotonicNs;
  char text[4] = {};
  const ssize_t got = ::read(fd, text, sizeof text);
  ::close(fd);
  if (got == 4 && std::memcmp(text, "tsc\n", 4) == 0) return format::ClockKind::kTsc;
#endif
  return format::ClockKind::kMonotonicNs;
}

ClockPair ReadClockPair(format::ClockKind kind) {
  if (kind == format::ClockKind::kMonotonicNs) {
    const std::int64_t now = MonotonicNs();
    return {static_cast<std::uint64_t>(now), now};
  }
  ClockPair best;
  std::uint64_t best_width = ~0ULL;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = Ticks(kind);
    const std::int64_t now = MonotonicNs();
    const std::uint64_t width = Ticks(kind) - before;
    if (width < best_width) {
      best_width = width;
      best = {before + width / 2, now};
    }
  }
  return best;
}

}  // namespace telltale::channel
