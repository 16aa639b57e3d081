// SPDX-License-Identifier: Apache-2.0
// The producer's side of the names area: text → id, each text once.
//
// Thread safety: Intern may be called from any thread. Looking up takes no lock; adding takes a
// spin lock with a bound, after which the name is folded rather than waited for.
// Lives in memory that is zero at first; runs in the user's process: no exceptions, no allocation
// but Open's one mapping.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/channel_layout.h"

namespace telltale::channel {

class NameTable {
 public:
  /// `area` has header->names_bytes bytes. False where memory is short. Once.
  bool Open(format::ArenaHeader* header, char* area);
  /// Gives back what Open has mapped, if anything. REQUIRES: no thread is inside, or comes.
  void Close();
  /// Id of the text, cut to kMaxTextBytes; 0 "(folded)" where the table is full. Both are counted.
  std::uint32_t Intern(const char* text, std::size_t length);
  /// Whether an id that Intern gave stands for a tensor (format::kTensorMark).
  bool IsTensor(std::uint32_t id) const;
  /// Names so far: the ids 1 to this one.
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  /// Of an id that Intern gave; empty for any other.
  std::string_view Text(std::uint32_t id) const;

 private:
  struct Entry {
    std::uint32_t offset;  ///< Of the text in the area.
    std::uint32_t length;
  };

  std::uint32_t Find(const char* text, std::size_t length, std::uint32_t hash,
                     std::size_t* slot) const;
  std::uint32_t Fold();
  std::size_t MapBytes() const {
    return (slot_mask_ + 1) * sizeof(std::uint64_t) + (limit_ + 1) * sizeof(Entry);
  }

  format::ArenaHeader* header_;
  char* area_;
  std::atomic<std::uint64_t>* slots_;  ///< hash << 32 | id; 0: empty.
  Entry* entries_;
  std::size_t slot_mask_;
  std::uint64_t capacity_;
  std::uint32_t limit_;
  std::atomic<std::uint32_t> lock_;
  std::atomic<std::uint32_t>
      stuck_;  ///< A wait for the lock was in vain: nobody waits again for it.
  std::atomic<std::uint32_t> count_;  ///< Set under lock_.
  std::uint64_t used_;                ///< Bytes of the area; under lock_.
  std::atomic<std::uint64_t> left_;   ///< Of those, for another name; set under lock_.
};

/// `length` cut to kMaxTextBytes, not inside a UTF-8 sequence.
std::size_t CutText(const char* text, std::size_t length);

}  // namespace telltale::channel
