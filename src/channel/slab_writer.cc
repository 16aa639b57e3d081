// SPDX-License-Identifier: Apache-2.0
// Runs in the user's process: no exceptions, no allocation, no stdio.
#include "channel/slab_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace telltale::channel {
namespace {

using format::kSlotBytes;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
/// Slots that are asked of the kernel at a time: 8 MiB, about 2 ms.
constexpr std::uint64_t kAllocateSlots = (8U << 20) / kSlotBytes;

}  // namespace

bool SlabWriter::Map(int fd) {
  struct stat info {};
  bool good = false;
  if (!mapped() && ::fstat(fd, &info) == 0 &&
      info.st_size >= static_cast<off_t>(format::kPageBytes) &&
      (::fcntl(fd, F_GET_SEALS) & kSeals) == kSeals) {
    const auto bytes = static_cast<std::uint64_t>(info.st_size);
    void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      // A core of the training would give each slot memory, and the file the size of all of them.
      ::madvise(map, bytes, MADV_DONTDUMP);
      const auto* header = static_cast<const format::SlabHeader*>(map);
      const std::uint64_t slots = header->slots;
      const std::uint64_t offset = header->slots_offset;
      good = header->magic == format::kSlabMagic && slots > 0 && offset % format::kPageBytes == 0 &&
             offset >= format::kPageBytes + slots * sizeof(std::uint32_t) && offset <= bytes &&
             slots <= (bytes - offset) / kSlotBytes;
      if (good) {
        words_ = reinterpret_cast<std::atomic<std::uint32_t>*>(static_cast<char*>(map) +
                                                               format::kPageBytes);
        slots_ = slots;
        slots_offset_ = offset;
        fd_ = fd;
        device_ = info.st_dev;
        inode_ = info.st_ino;
        data_.store(static_cast<char*>(map) + offset, std::memory_order_release);
      } else {
        ::munmap(map, bytes);
      }
    }
  }
  if (!good) ::close(fd);
  return good;
}

bool SlabWriter::Allocate(std::uint64_t slots, std::uint64_t limit) {
  const std::uint64_t from = allocated_.load(std::memory_order_acquire);
  if (slots <= from) return true;
  const std::uint64_t to = std::max(slots, std::min(limit, from + kAllocateSlots));
  const int saved = errno;
  // A program that closed all descriptors may have given ours to something of its own.
  struct stat info {};
  bool good = ::fstat(fd_, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
  if (good) {
    // A signal undoes what was allocated; two threads that come here at once ask for the same.
    int result = -1;
    for (int tries = 0; tries < 64; ++tries) {
      result = ::fallocate(fd_, FALLOC_FL_KEEP_SIZE,
                           static_cast<off_t>(slots_offset_ + from * kSlotBytes),
                           static_cast<off_t>((to - from) * kSlotBytes));
      if (result == 0 || errno != EINTR) break;
    }
    good = result == 0;
  }
  errno = saved;
  if (!good) return false;
  std::uint64_t known = from;
  while (known < to && !allocated_.compare_exchange_weak(known, to, std::memory_order_acq_rel)) {
  }
  return true;
}

std::uint64_t SlabWriter::Take(std::uint64_t from, std::uint64_t to, std::uint64_t need) {
  std::uint64_t begin = from;
  while (begin + need <= to) {
    // From the run's end backwards: a slot that is not free rules out all runs over it.
    std::uint64_t at = begin + need;
    while (at > begin && words_[at - 1].load(std::memory_order_relaxed) == format::kSlotFree) --at;
    if (at > begin) {
      begin = at;
      continue;
    }
    std::uint64_t claimed = begin;
    for (; claimed < begin + need; ++claimed) {
      std::uint32_t free = format::kSlotFree;
      // Acquire: the reader is done with what it freed.
      if (!words_[claimed].compare_exchange_strong(
              free, format::kSlotFilling, std::memory_order_acquire, std::memory_order_relaxed)) {
        break;
      }
    }
    if (claimed == begin + need) return begin;
    for (std::uint64_t i = begin; i < claimed; ++i) {  // Another thread was faster.
      words_[i].store(format::kSlotFree, std::memory_order_relaxed);
    }
    begin = claimed + 1;
  }
  return to;
}

bool SlabWriter::Claim(std::uint64_t bytes, std::uint64_t limit_bytes, std::uint32_t* slot,
                       void** data) {
  char* const base = data_.load(std::memory_order_acquire);
  if (base == nullptr) return false;
  const std::uint64_t limit = std::min(slots_, limit_bytes / kSlotBytes);
  const std::uint64_t need = SlotsOf(bytes);
  if (need > limit) return false;
  // What the kernel has backed already goes first: onwards from the last run, then from the begin.
  const std::uint64_t backed = std::min(allocated_.load(std::memory_order_acquire), limit);
  const std::uint64_t next = next_.load(std::memory_order_relaxed);
  std::uint64_t begin = next < backed ? Take(next, backed, need) : backed;
  if (begin == backed) {
    const std::uint64_t end = std::min(backed, next + need);
    begin = Take(0, end, need);
    if (begin == end) {
      // A run may begin in what is backed and end behind it.
      const std::uint64_t from = backed >= need ? backed - need + 1 : 0;
      begin = Take(from, limit, need);
      if (begin == limit) return false;
      if (!Allocate(begin + need, limit)) {
        Abandon(static_cast<std::uint32_t>(begin), bytes);
        return false;
      }
    }
  }
  next_.store(begin + need, std::memory_order_relaxed);
  *slot = static_cast<std::uint32_t>(begin);
  *data = base + begin * kSlotBytes;
  return true;
}

void SlabWriter::SetState(std::uint64_t slot, std::uint64_t bytes, std::uint32_t state) {
  const std::uint64_t end = slot + SlotsOf(bytes);
  for (std::uint64_t i = slot; i < end; ++i) words_[i].store(state, std::memory_order_release);
}

void SlabWriter::Publish(std::uint32_t slot, std::uint64_t bytes) {
  SetState(slot, bytes, format::kSlotFull);
}

void SlabWriter::Abandon(std::uint32_t slot, std::uint64_t bytes) {
  SetState(slot, bytes, format::kSlotFree);
}

}  // namespace telltale::channel
