// SPDX-License-Identifier: Apache-2.0
// What the test's trainer says it has done, in a file that it shares with the test: independent of
// everything under test, and still there after any kill.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace telltale::fault {

struct Oracle {
  static constexpr std::uint32_t kMaxSteps = 1U << 18;

  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> recording;   ///< What tt_init returned, plus 1.
  std::atomic<std::uint64_t> committed;  ///< Steps whose tt_step has returned.
  std::atomic<std::uint64_t> signals;    ///< SIGINTs that have arrived.
  std::int64_t end_ns[kMaxSteps];        ///< CLOCK_MONOTONIC at the return of each step's tt_step.
  std::int64_t cpu_ns[kMaxSteps];        ///< CPU time of the thread so far, then.

  /// Maps the file, which is made where it is not there; null on failure.
  static Oracle* Map(const char* path) {
    const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return nullptr;
    void* map = MAP_FAILED;
    if (::ftruncate(fd, sizeof(Oracle)) == 0) {
      map = ::mmap(nullptr, sizeof(Oracle), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    ::close(fd);
    return map == MAP_FAILED ? nullptr : static_cast<Oracle*>(map);
  }
};

}  // namespace telltale::fault
