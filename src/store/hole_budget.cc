// SPDX-License-Identifier: Apache-2.0
#include "store/hole_budget.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace telltale::store {
namespace {

constexpr std::uint64_t kFreeBytesOfAFile = 64U << 20;

std::uint64_t HeldBytes(const struct stat& file) {
  return static_cast<std::uint64_t>(file.st_blocks) * 512;
}

/// At most so many of the bytes were never written.
std::uint64_t UnwrittenBytes(int fd, const struct stat& file, std::uint64_t offset,
                             std::uint64_t bytes) {
  const std::uint64_t held = HeldBytes(file);
  const auto size = static_cast<std::uint64_t>(file.st_size);
  // By its blocks, since not every file system over a network says where the holes are.
  if (held > 0) return std::min(bytes, size - std::min(size, held));
  // It has none, or its file system does not count them.
  const off_t data = ::lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? bytes : 0;
  return std::min(bytes, static_cast<std::uint64_t>(data) - offset);
}

}  // namespace

bool IsMostlyHole(int fd, const struct stat& file) {
  return UnwrittenBytes(fd, file, 0, static_cast<std::uint64_t>(file.st_size)) >
         kFreeBytesOfAFile + HeldBytes(file) * HoleBudget::kPerHeldByte;
}

void HoleBudget::Begin(const struct stat& file) { left_ += HeldBytes(file) * kPerHeldByte; }

bool HoleBudget::Take(int fd, const struct stat& file, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t unwritten = UnwrittenBytes(fd, file, offset, bytes);
  if (unwritten > left_) return false;
  left_ -= unwritten;
  return true;
}

}  // namespace telltale::store
