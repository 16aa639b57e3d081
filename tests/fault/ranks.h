// SPDX-License-Identifier: Apache-2.0
// What the ranks of fault_ranks say of themselves, in a file that they share with the test.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace telltale::fault {

struct Ranks {
  static constexpr std::size_t kMost = 16;

  std::array<std::atomic<std::int32_t>, kMost> recorded;  ///< What tt_init returned, plus 1.
  std::array<std::atomic<std::int32_t>, kMost> pids;
  std::array<std::atomic<std::uint32_t>, kMost> terms;  ///< SIGTERMs that have arrived.
  std::atomic<std::uint32_t> release;                   ///< Those that do not obey end.

  /// Maps the file, which is made where it is not there; null on failure.
  static Ranks* Map(const char* path) {
    const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return nullptr;
    void* map = MAP_FAILED;
    if (::ftruncate(fd, sizeof(Ranks)) == 0) {
      map = ::mmap(nullptr, sizeof(Ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    ::close(fd);
    return map == MAP_FAILED ? nullptr : static_cast<Ranks*>(map);
  }
};

}  // namespace telltale::fault
