// SPDX-License-Identifier: Apache-2.0
// The producer's side of the names area: text → id, each text once. The table grows: what the first
// names need is there from the start, the rest is asked of the kernel as names come, so that memory
// that is short folds names and never is a SIGBUS. docs/formats/channel.md.
//
// Thread safety: Intern may be called from any thread. Looking up takes no lock; adding takes a
// spin lock with a bound, after which the name is folded rather than waited for. Growing happens
// outside of that lock, before the room is used up, by one thread at a time.
// Lives in memory that is zero at first; runs in the user's process: no exceptions, no allocation
// but mappings of its own.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/channel_layout.h"

namespace telltale::channel {

class NameTable {
 public:
  /// Where more of the area comes from.
  struct Growth {
    int fd;                ///< The arena's memfd, which the table closes; -1: there is no more.
    std::uint64_t offset;  ///< Of the area in it, ...
    std::uint64_t mapped;  ///< ... of which this much is mapped, and the rest reserved.
  };

  /// `area` has header->names_bytes bytes of address space. False where memory is short. Once.
  bool Open(format::ArenaHeader* header, char* area, const Growth& growth);
  /// Gives back what Open has mapped, if anything. REQUIRES: no thread is inside, or comes.
  void Close();
  /// Id of the text, or of FitName's where it is longer than kMaxTextBytes; 0 "(folded)" where the
  /// table is full. Both are counted.
  std::uint32_t Intern(const char* text, std::size_t length);
  /// Whether an id that Intern gave stands for a tensor (format::kTensorMark).
  bool IsTensor(std::uint32_t id) const;
  /// Names so far: the ids 1 to this one.
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  /// Of an id that Intern gave; empty for any other.
  std::string_view Text(std::uint32_t id) const;

 private:
  friend class NameTableTest;  // Grows it where a thread looks for a place.

  struct Entry {
    std::uint32_t offset;  ///< Of the text in the area.
    std::uint32_t length;
  };
  /// Each has eight times the names of the one before it, and is made when that is nearly full. A
  /// name is in the level of its id.
  struct Level {
    std::atomic<std::uint64_t>* slots;  ///< hash << 32 | id; 0: empty.
    Entry* entries;                     ///< By id - first.
    std::size_t slot_mask;
    std::uint32_t first;  ///< Its smallest id.
    std::uint32_t ids;
  };
  /// Where a name is entered.
  struct Place {
    const Level* level;  ///< Null: the level of the next id is not made.
    std::size_t slot;
  };
  static constexpr std::uint32_t kLevels = 4;

  bool AddLevel(bool populate);
  /// Maps more of the area, and the next level, where the room becomes short.
  void GrowInTime(std::size_t length);
  bool MapMore();
  const Level* LevelOf(std::uint32_t id) const;
  /// 0: it is not there, and belongs at `place`.
  std::uint32_t Find(const char* text, std::size_t length, std::uint32_t hash, Place* place) const;
  bool Lock();
  /// Under the lock, in which Find gave the place; 0: no room now.
  std::uint32_t Add(const char* text, std::size_t length, std::uint32_t hash, Place place);
  std::uint32_t Fold();
  static std::size_t MapBytes(const Level& level) {
    return (level.slot_mask + 1) * sizeof(std::uint64_t) + level.ids * sizeof(Entry);
  }

  format::ArenaHeader* header_;
  char* area_;
  Level levels_[kLevels];
  std::atomic<std::uint32_t> level_count_;  ///< Levels that are made (release).
  std::atomic<std::uint32_t> ids_;          ///< Names that these have room for.
  std::atomic<std::uint64_t> mapped_;       ///< Bytes of the area that can be written.
  std::atomic<std::uint64_t> capacity_;  ///< What it can become; less once the kernel has refused.
  std::atomic<std::uint32_t> limit_;     ///< Likewise of names.
  int fd_;
  dev_t device_;  ///< Of fd_: a program that closes all descriptors may give the number away.
  ino_t inode_;
  std::uint64_t offset_;
  std::atomic<std::uint32_t> growing_;
  std::atomic<std::uint32_t> lock_;
  std::atomic<std::uint32_t>
      stuck_;  ///< A wait for the lock was in vain: nobody waits again for it.
  std::atomic<std::uint32_t> count_;  ///< Set under lock_.
  std::atomic<std::uint64_t> used_;   ///< Bytes of the area; set under lock_.
};

/// `length` cut to kMaxTextBytes, not inside a UTF-8 sequence.
std::size_t CutText(const char* text, std::size_t length);

/// `head` and `text` as one name of at most kMaxTextBytes, written to `out`, which has room for so
/// many; its length. What is longer ends in '#' and 16 hex digits of a hash of the whole, so that
/// two long names stay two. REQUIRES: head_length < kMaxTextBytes / 2.
std::size_t FitName(const char* head, std::size_t head_length, const char* text, std::size_t length,
                    char* out);

}  // namespace telltale::channel
