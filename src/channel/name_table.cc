// SPDX-License-Identifier: Apache-2.0
#include "channel/name_table.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace telltale::channel {
namespace {

/// Tries for the lock: yields, then pauses, in which a holder that was preempted gets the core.
/// About 2 ms in all, and once: while the lock is stuck others fold at their first try.
constexpr int kLockYields = 100;
constexpr int kLockTries = kLockYields + 20;
constexpr timespec kLockPause{0, 50'000};

void AwaitLock(int tries) {
  if (tries <= kLockYields) {
    ::sched_yield();
    return;
  }
  const int saved = errno;
  ::nanosleep(&kLockPause, nullptr);
  errno = saved;
}

std::uint64_t Mix(std::uint64_t h, std::uint64_t word) {
  h = (h ^ word) * 0xff51afd7ed558ccdULL;
  return h ^ h >> 32;
}

std::uint64_t Hash(std::uint64_t h, const char* text, std::size_t length) {
  h ^= length;
  while (length >= 8) {
    std::uint64_t word;
    std::memcpy(&word, text, 8);
    h = Mix(h, word);
    text += 8;
    length -= 8;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, text, length);
  h = (h ^ word) * 0xff51afd7ed558ccdULL;
  return h ^ h >> 29;
}

constexpr std::uint64_t kSeed = 0x9e3779b97f4a7c15ULL;

std::uint64_t EntryBytes(std::size_t length) { return 4 + (length + 3) / 4 * 4; }

/// Names of the first level: as many as a process has without experts.
constexpr std::uint32_t kFirstLevel = 16'383;
/// What is asked of the kernel at a time, about half a millisecond, and how long before its end:
/// room for others while it takes.
constexpr std::uint64_t kPiece = 2 << 20;
constexpr std::uint64_t kAheadBytes = 128 << 10;
constexpr std::uint32_t kAheadIds = 1024;

}  // namespace

std::size_t CutText(const char* text, std::size_t length) {
  if (length <= format::kMaxTextBytes) return length;
  std::size_t cut = format::kMaxTextBytes;
  for (int i = 0; i < 3 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; ++i) --cut;
  return cut;
}

std::size_t FitName(const char* head, std::size_t head_length, const char* text, std::size_t length,
                    char* out) {
  constexpr std::size_t kMarkBytes = 1 + 16;
  if (head_length > 0) std::memcpy(out, head, head_length);
  char* const rest = out + head_length;
  if (length <= format::kMaxTextBytes - head_length) {
    if (length > 0) std::memcpy(rest, text, length);
    return head_length + length;
  }
  std::size_t cut = format::kMaxTextBytes - head_length - kMarkBytes;
  for (int i = 0; i < 3 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; ++i) --cut;
  std::memcpy(rest, text, cut);
  char* at = rest + cut;
  *at++ = '#';
  std::uint64_t hash = Hash(Hash(kSeed, text, length), head_length > 0 ? head : "", head_length);
  for (int i = 0; i < 16; ++i, hash <<= 4) *at++ = "0123456789abcdef"[hash >> 60];
  return static_cast<std::size_t>(at - out);
}

bool NameTable::Open(format::ArenaHeader* header, char* area, const Growth& growth) {
  header_ = header;
  area_ = area;
  limit_.store(header->name_limit, std::memory_order_relaxed);
  capacity_.store(growth.fd < 0 ? growth.mapped : header->names_bytes, std::memory_order_relaxed);
  mapped_.store(growth.mapped, std::memory_order_relaxed);
  offset_ = growth.offset;
  fd_ = growth.fd;
  struct stat info {};
  if (fd_ >= 0) {
    if (::fstat(fd_, &info) != 0) return false;
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  return AddLevel(true);
}

void NameTable::Close() {
  const std::uint32_t made = level_count_.exchange(0);
  for (std::uint32_t i = 0; i < made; ++i) ::munmap(levels_[i].slots, MapBytes(levels_[i]));
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

/// The first one is populated, so that no thread that holds the lock waits for one of its pages.
/// Later ones are large, and have only the pages that names come to lie in.
bool NameTable::AddLevel(bool populate) {
  const std::uint32_t made = level_count_.load(std::memory_order_relaxed);
  const std::uint32_t ids = ids_.load(std::memory_order_relaxed);
  const std::uint32_t limit = limit_.load(std::memory_order_relaxed);
  if (made == kLevels || ids >= limit) return false;
  Level& level = levels_[made];
  const std::uint32_t wanted = made == 0 ? kFirstLevel : levels_[made - 1].ids * 8;
  level.first = ids + 1;
  level.ids = wanted < limit - ids ? wanted : limit - ids;
  std::size_t slots = 64;
  while (slots < std::size_t{level.ids} * 2) slots *= 2;
  level.slot_mask = slots - 1;
  void* map = ::mmap(nullptr, MapBytes(level), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : 0), -1, 0);
  if (map == MAP_FAILED) return false;
  // Names lie scattered over it: huge pages would be there at once.
  if (!populate) ::madvise(map, MapBytes(level), MADV_NOHUGEPAGE);
  level.slots = static_cast<std::atomic<std::uint64_t>*>(map);
  level.entries = reinterpret_cast<Entry*>(level.slots + slots);
  level_count_.store(made + 1, std::memory_order_release);
  ids_.store(ids + level.ids, std::memory_order_release);
  return true;
}

bool NameTable::MapMore() {
  const std::uint64_t from = mapped_.load(std::memory_order_relaxed);
  const std::uint64_t capacity = capacity_.load(std::memory_order_relaxed);
  const std::uint64_t bytes = kPiece < capacity - from ? kPiece : capacity - from;
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return false;
  int result = -1;
  // A signal undoes what was allocated.
  for (int tries = 0; tries < 64; ++tries) {
    result = ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_ + from),
                         static_cast<off_t>(bytes));
    if (result == 0 || errno != EINTR) break;
  }
  if (result != 0) return false;
  // Over address space that is reserved for it.
  void* const map =
      ::mmap(area_ + from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             fd_, static_cast<off_t>(offset_ + from));
  if (map == MAP_FAILED) return false;
  mapped_.store(from + bytes, std::memory_order_release);
  return true;
}

void NameTable::GrowInTime(std::size_t length) {
  const auto short_of_bytes = [&] {
    const std::uint64_t mapped = mapped_.load(std::memory_order_acquire);
    const std::uint64_t used = used_.load(std::memory_order_relaxed);
    return mapped < capacity_.load(std::memory_order_relaxed) &&
           used + EntryBytes(length) + kAheadBytes > mapped;
  };
  const auto short_of_ids = [&] {
    const std::uint32_t ids = ids_.load(std::memory_order_acquire);
    return ids < limit_.load(std::memory_order_relaxed) && count() + kAheadIds > ids;
  };
  if (!short_of_bytes() && !short_of_ids()) return;
  if (growing_.exchange(1, std::memory_order_acquire) != 0) return;
  const int saved = errno;
  // What the kernel has refused once is not asked for again: that would cost each name a call.
  if (short_of_bytes() && !MapMore()) {
    capacity_.store(mapped_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  if (short_of_ids() && !AddLevel(false)) {
    limit_.store(ids_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  errno = saved;
  growing_.store(0, std::memory_order_release);
}

const NameTable::Level* NameTable::LevelOf(std::uint32_t id) const {
  const std::uint32_t made = level_count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < made; ++i) {
    if (id - levels_[i].first < levels_[i].ids) return &levels_[i];
  }
  return nullptr;
}

std::uint32_t NameTable::Find(const char* text, std::size_t length, std::uint32_t hash,
                              Place* place) const {
  *place = {};
  const std::uint32_t made = level_count_.load(std::memory_order_acquire);
  const std::uint32_t next = count() + 1;
  for (std::uint32_t i = 0; i < made; ++i) {
    const Level& level = levels_[i];
    for (std::size_t at = hash & level.slot_mask;; at = (at + 1) & level.slot_mask) {
      const std::uint64_t value = level.slots[at].load(std::memory_order_acquire);
      if (value == 0) {
        if (next - level.first < level.ids) *place = {&level, at};
        break;
      }
      if (static_cast<std::uint32_t>(value >> 32) != hash) continue;
      const auto id = static_cast<std::uint32_t>(value);
      const Entry entry = level.entries[id - level.first];
      if (entry.length == length && std::memcmp(area_ + entry.offset, text, length) == 0) return id;
    }
  }
  return 0;
}

std::string_view NameTable::Text(std::uint32_t id) const {
  const Level* const level = LevelOf(id);
  if (level == nullptr) return {};
  const Entry entry = level->entries[id - level->first];  // Zero where no such id was given.
  return {area_ + entry.offset, entry.length};
}

bool NameTable::IsTensor(std::uint32_t id) const {
  const std::string_view text = Text(id);
  return !text.empty() && text.front() == format::kTensorMark;
}

std::uint32_t NameTable::Fold() {
  header_->names_folded.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

bool NameTable::Lock() {
  for (int tries = 0; lock_.exchange(1, std::memory_order_acquire) != 0;) {
    if (++tries > kLockTries || stuck_.load(std::memory_order_relaxed) != 0) {
      stuck_.store(1, std::memory_order_relaxed);
      return false;
    }
    AwaitLock(tries);
  }
  stuck_.store(0, std::memory_order_relaxed);
  return true;
}

std::uint32_t NameTable::Add(const char* text, std::size_t length, std::uint32_t hash,
                             Place place) {
  const std::uint64_t used = used_.load(std::memory_order_relaxed);
  const std::uint32_t id = count() + 1;
  if (used + EntryBytes(length) > mapped_.load(std::memory_order_acquire)) return 0;
  // A level that has come since has not been looked through for its place.
  const Level* const level = place.level;
  if (level == nullptr) return 0;
  const auto bytes = static_cast<std::uint32_t>(length);
  std::memcpy(area_ + used, &bytes, sizeof bytes);
  if (length > 0) std::memcpy(area_ + used + 4, text, length);
  level->entries[id - level->first] = {static_cast<std::uint32_t>(used + 4), bytes};
  used_.store(used + EntryBytes(length), std::memory_order_relaxed);
  count_.store(id, std::memory_order_relaxed);
  // The consumer sees the text before any record that can name it.
  header_->names_published.store(used + EntryBytes(length), std::memory_order_release);
  level->slots[place.slot].store(std::uint64_t{hash} << 32 | id, std::memory_order_release);
  return id;
}

std::uint32_t NameTable::Intern(const char* text, std::size_t length) {
  char fitted[format::kMaxTextBytes];
  if (length > format::kMaxTextBytes) {
    length = FitName(nullptr, 0, text, length, fitted);
    text = fitted;
    Fold();
  }
  const auto hash = static_cast<std::uint32_t>(Hash(kSeed, text, length) >> 16);
  Place place;
  if (const std::uint32_t id = Find(text, length, hash, &place); id != 0) return id;

  for (int tries = 1;; ++tries) {
    GrowInTime(length);
    // A name that will find no room takes no lock.
    const std::uint64_t after = used_.load(std::memory_order_relaxed) + EntryBytes(length);
    if (after > capacity_.load(std::memory_order_relaxed) ||
        count() == limit_.load(std::memory_order_relaxed)) {
      return Fold();
    }
    if (!Lock()) return Fold();
    std::uint32_t id = Find(text, length, hash, &place);
    if (id == 0) id = Add(text, length, hash, place);
    lock_.store(0, std::memory_order_release);
    if (id != 0) return id;
    // Another thread is asking for more.
    if (tries > kLockTries) return Fold();
    AwaitLock(tries);
  }
}

}  // namespace telltale::channel
