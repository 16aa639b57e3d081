// SPDX-License-Identifier: Apache-2.0
// How much that was never written is read of a run's files. A file may say that it is of any size
// and take up nothing of the disk: who reads it gets zeros for as long as it says. What the disk
// holds is always read.
//
// Thread safety: none.
#pragma once
#include <sys/stat.h>

#include <cstdint>

namespace telltale::store {

/// Whether a file says that it is far larger than what the disk holds of it: beyond 64 MiB, and
/// HoleBudget::kPerHeldByte for each byte that it does hold. Who has to read all that it says, and
/// to keep it, takes it for none.
bool IsMostlyHole(int fd, const struct stat& file);

class HoleBudget {
 public:
  /// Unwritten bytes of a run that are read whatever it holds.
  static constexpr std::uint64_t kFreeBytes = 1U << 30;
  /// And for each byte that the disk holds: a copy may leave out zeros, and many values are zero.
  static constexpr std::uint64_t kPerHeldByte = 16;

  /// A file of the run comes, whose ranges are asked for next.
  void Begin(const struct stat& file);
  /// Whether `bytes` of the file from `offset` on, which lie within it, are to be read. Each byte
  /// is asked for once.
  bool Take(int fd, const struct stat& file, std::uint64_t offset, std::uint64_t bytes);

 private:
  std::uint64_t left_ = kFreeBytes;
};

}  // namespace telltale::store
