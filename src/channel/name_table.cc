// SPDX-License-Identifier: Apache-2.0
#include "channel/name_table.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

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

std::uint32_t Hash(const char* text, std::size_t length) {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL ^ length;
  while (length >= 8) {
    std::uint64_t word;
    std::memcpy(&word, text, 8);
    h = (h ^ word) * 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
    text += 8;
    length -= 8;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, text, length);
  h = (h ^ word) * 0xff51afd7ed558ccdULL;
  h ^= h >> 29;
  return static_cast<std::uint32_t>(h >> 16);
}

std::uint64_t EntryBytes(std::size_t length) { return 4 + (length + 3) / 4 * 4; }

}  // namespace

std::size_t CutText(const char* text, std::size_t length) {
  if (length <= format::kMaxTextBytes) return length;
  std::size_t cut = format::kMaxTextBytes;
  for (int i = 0; i < 3 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; ++i) --cut;
  return cut;
}

bool NameTable::Open(format::ArenaHeader* header, char* area) {
  header_ = header;
  area_ = area;
  capacity_ = header->names_bytes;
  limit_ = header->name_limit;
  left_.store(capacity_, std::memory_order_relaxed);
  std::size_t slots = 64;
  while (slots < std::size_t{limit_} * 2) slots *= 2;
  slot_mask_ = slots - 1;
  // Populated, so that no thread that holds the lock waits for a page.
  void* map = ::mmap(nullptr, MapBytes(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (map == MAP_FAILED) return false;
  slots_ = static_cast<std::atomic<std::uint64_t>*>(map);
  entries_ = reinterpret_cast<Entry*>(slots_ + slots);
  return true;
}

void NameTable::Close() {
  if (slots_ != nullptr) ::munmap(slots_, MapBytes());
  slots_ = nullptr;
}

std::uint32_t NameTable::Find(const char* text, std::size_t length, std::uint32_t hash,
                              std::size_t* slot) const {
  for (std::size_t at = hash & slot_mask_;; at = (at + 1) & slot_mask_) {
    const std::uint64_t value = slots_[at].load(std::memory_order_acquire);
    if (value == 0) {
      *slot = at;
      return 0;
    }
    if (static_cast<std::uint32_t>(value >> 32) != hash) continue;
    const auto id = static_cast<std::uint32_t>(value);
    const Entry entry = entries_[id];
    if (entry.length == length && std::memcmp(area_ + entry.offset, text, length) == 0) return id;
  }
}

std::string_view NameTable::Text(std::uint32_t id) const {
  if (id == 0 || id > limit_) return {};
  const Entry entry = entries_[id];  // Zero where no such id was given.
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

std::uint32_t NameTable::Intern(const char* text, std::size_t length) {
  if (const std::size_t cut = CutText(text, length); cut != length) {
    length = cut;
    Fold();
  }
  const std::uint32_t hash = Hash(text, length);
  std::size_t slot = 0;
  if (const std::uint32_t id = Find(text, length, hash, &slot); id != 0) return id;

  // It only becomes less: a name that finds none takes no lock.
  const auto has_room = [&] { return EntryBytes(length) <= left_.load(std::memory_order_relaxed); };
  if (!has_room()) return Fold();
  for (int tries = 0; lock_.exchange(1, std::memory_order_acquire) != 0;) {
    if (++tries > kLockTries || stuck_.load(std::memory_order_relaxed) != 0) {
      stuck_.store(1, std::memory_order_relaxed);
      return Fold();
    }
    AwaitLock(tries);
  }
  stuck_.store(0, std::memory_order_relaxed);
  std::uint32_t id = Find(text, length, hash, &slot);
  if (id == 0 && has_room()) {
    const auto bytes = static_cast<std::uint32_t>(length);
    std::memcpy(area_ + used_, &bytes, sizeof bytes);
    if (length > 0) std::memcpy(area_ + used_ + 4, text, length);
    id = count() + 1;
    count_.store(id, std::memory_order_relaxed);
    entries_[id] = {static_cast<std::uint32_t>(used_ + 4), bytes};
    used_ += EntryBytes(length);
    left_.store(id == limit_ ? 0 : capacity_ - used_, std::memory_order_relaxed);
    // The consumer sees the text before any record that can name it.
    header_->names_published.store(used_, std::memory_order_release);
    slots_[slot].store(std::uint64_t{hash} << 32 | id, std::memory_order_release);
  }
  lock_.store(0, std::memory_order_release);
  return id != 0 ? id : Fold();
}

}  // namespace telltale::channel
