// SPDX-License-Identifier: Apache-2.0
// The producer's side of a slab: claims runs of slots for the values of tensors.
//
// Thread safety: Claim, Publish and Abandon may be called from any thread; a slot belongs to who
// made it kSlotFilling until Publish or Abandon. Map: once, before them or beside them.
// Lives in memory that is zero at first. Runs in the user's process: no exceptions, no allocation.
// Memory is taken from the kernel in pieces, as claims first need it, so that memory that is short
// is a refusal here and never a SIGBUS later.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "format/channel_layout.h"

namespace telltale::channel {

/// Slots that `bytes` of values fill; at least one.
constexpr std::uint64_t SlotsOf(std::uint64_t bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / format::kSlotBytes + 1;
}

class SlabWriter {
 public:
  /// Maps the slab of a descriptor, which it takes; false where it is none.
  bool Map(int fd);
  bool mapped() const { return data_.load(std::memory_order_acquire) != nullptr; }

  /// A run of slots for `bytes` among the first `limit_bytes` of the slab; false where there is no
  /// room. The caller fills `data`, then publishes or abandons the run.
  bool Claim(std::uint64_t bytes, std::uint64_t limit_bytes, std::uint32_t* slot, void** data);
  /// The values are complete: the record that names the slot may follow.
  void Publish(std::uint32_t slot, std::uint64_t bytes);
  /// Gives a claimed or published run back: no record will name it.
  void Abandon(std::uint32_t slot, std::uint64_t bytes);

 private:
  /// Looks for `need` free slots in [from, to) and makes them kSlotFilling; the first of them, or
  /// `to`.
  std::uint64_t Take(std::uint64_t from, std::uint64_t to, std::uint64_t need);
  /// Has the kernel back the slots below `slots`; false where memory is short.
  bool Allocate(std::uint64_t slots, std::uint64_t limit);
  void SetState(std::uint64_t slot, std::uint64_t bytes, std::uint32_t state);

  std::atomic<char*> data_;  ///< Of slot 0; null: no slab. Stored last (release).
  std::atomic<std::uint32_t>* words_;
  std::uint64_t slots_;
  std::uint64_t slots_offset_;
  std::atomic<std::uint64_t> allocated_;  ///< Slots that the kernel has backed.
  std::atomic<std::uint64_t> next_;       ///< Where the next look begins.
  int fd_;
  dev_t device_;
  ino_t inode_;
};

}  // namespace telltale::channel
