// SPDX-License-Identifier: Apache-2.0
// How long a thread was kept from its core while a capture of ours was at work: another process ran
// there, which no capture costs the training. What the capture waited for itself (a lock, a page, a
// disk) is its cost. Thread safety: stateless. No exceptions, no allocation.
#pragma once
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace telltale::probe {

/// What the kernel has counted of the calling thread.
struct CoreTime {
  std::uint64_t cpu_ns = 0;
  std::uint64_t waits = 0;  ///< So often it gave up its core by itself.
};

/// False where the kernel does not tell.
inline bool ReadCoreTime(CoreTime* out) {
#ifdef RUSAGE_THREAD
  rusage usage{};
  // Of the processor's time rusage has what was charged at the last tick, up to 4 ms ago.
  timespec cpu{};
  if (::getrusage(RUSAGE_THREAD, &usage) != 0 ||
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) != 0) {
    return false;
  }
  out->cpu_ns = static_cast<std::uint64_t>(cpu.tv_sec) * 1'000'000'000U +
                static_cast<std::uint64_t>(cpu.tv_nsec);
  out->waits = static_cast<std::uint64_t>(usage.ru_nvcsw);
  return true;
#else
  static_cast<void>(out);
  return false;
#endif
}

/// Of the last `took_ns` of the `wall_ns` between two readings: for how long it was kept from its
/// core. 0 where it waited by itself, which cannot be told from the rest.
constexpr std::uint64_t KeptFromCoreNs(const CoreTime& before, const CoreTime& after,
                                       std::uint64_t wall_ns, std::uint64_t took_ns) {
  constexpr std::uint64_t kLeastNs =
      50'000;  // The kernel counts whole microseconds, of ticks even.
  const std::uint64_t cpu_ns = after.cpu_ns - before.cpu_ns;
  if (after.waits != before.waits || after.cpu_ns < before.cpu_ns) return 0;
  if (wall_ns < cpu_ns + kLeastNs) return 0;
  return std::min(wall_ns - cpu_ns, took_ns);
}

}  // namespace telltale::probe
