// SPDX-License-Identifier: Apache-2.0
// Records: rings of threads, reserve and commit. producer_open.cc makes and registers the arena.
#include "channel/producer.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>

namespace telltale::channel {
namespace {

using format::RecordHeader;
using format::RecordKind;
using format::RingState;

/// How often a thread without a ring looks for one again, in records.
constexpr std::uint32_t kClaimEvery = 256;

struct ThreadState {
  Producer::ThreadRing* ring;
  std::uint32_t serial;    ///< Producer::serial_ that `ring` belongs to.
  std::uint32_t unringed;  ///< Records since the last look for a ring.
};
thread_local ThreadState t_state;

std::atomic<std::uint32_t> g_serial{0};
/// Producers below it belong to the process before a fork.
std::atomic<std::uint32_t> g_first_live_serial{1};

pthread_key_t g_exit_key;
// 0: no key, 1: being made, 2: made, 3: none to be had.
std::atomic<int> g_exit_key_state{0};

/// Runs at the end of a thread that owns a ring.
void ThreadEnds(void* value) {
  auto* ring = static_cast<Producer::ThreadRing*>(value);
  // The ring of the process before a fork is not this process's to end.
  if (t_state.ring != ring || ring->entry == nullptr ||
      t_state.serial < g_first_live_serial.load(std::memory_order_relaxed)) {
    return;
  }
  t_state.ring = nullptr;
  t_state.serial = 0;
  ring->entry->state.store(static_cast<std::uint32_t>(RingState::kEnded),
                           std::memory_order_release);
}

bool ExitKey() {
  int state = g_exit_key_state.load(std::memory_order_acquire);
  if (state == 0 && g_exit_key_state.compare_exchange_strong(state, 1)) {
    const bool made = ::pthread_key_create(&g_exit_key, ThreadEnds) == 0;
    g_exit_key_state.store(made ? 2 : 3, std::memory_order_release);
    return made;
  }
  return state == 2;
}

RecordHeader MakeHeader(RecordKind kind, std::uint8_t flags, std::size_t size, std::uint32_t name) {
  return {static_cast<std::uint8_t>(kind), flags, static_cast<std::uint16_t>(size), name};
}

}  // namespace

std::uint32_t Producer::NextSerial() {
  return g_serial.fetch_add(1, std::memory_order_relaxed) + 1;
}

void Producer::ForgetAfterFork() {
  g_first_live_serial.store(g_serial.load(std::memory_order_relaxed) + 1,
                            std::memory_order_relaxed);
}

[[gnu::hot]] Producer::ThreadRing* Producer::Ring() {
  ThreadState& state = t_state;
  if (__builtin_expect(state.serial == serial_ && state.ring != nullptr, 1)) return state.ring;
  if (state.serial == serial_ && ++state.unringed % kClaimEvery != 0) return nullptr;
  state.serial = serial_;
  const int saved = errno;
  state.ring = ClaimRing();
  errno = saved;
  return state.ring;
}

Producer::ThreadRing* Producer::ClaimRing() {
  for (std::uint32_t i = 0; i < ring_count_; ++i) {
    ThreadRing& ring = rings_[i];
    format::RingEntry& entry = *ring.entry;
    auto state = entry.state.load(std::memory_order_acquire);
    if (state == static_cast<std::uint32_t>(RingState::kOwned)) continue;
    if (state == static_cast<std::uint32_t>(RingState::kEnded) &&
        entry.tail.load(std::memory_order_acquire) != ring.head) {
      continue;  // Not drained: its records belong to the thread that ended.
    }
    if (!entry.state.compare_exchange_strong(state, static_cast<std::uint32_t>(RingState::kOwned),
                                             std::memory_order_acq_rel)) {
      continue;
    }
    // Another thread may have had the ring and ended since it was found drained.
    if (entry.tail.load(std::memory_order_acquire) != ring.head) {
      entry.state.store(static_cast<std::uint32_t>(RingState::kEnded), std::memory_order_release);
      continue;
    }
    entry.tid.store(static_cast<std::int32_t>(::syscall(SYS_gettid)), std::memory_order_relaxed);
    // Without a key the ring stays owned after its thread: a loss of room, not of records.
    if (ExitKey()) ::pthread_setspecific(g_exit_key, &ring);
    return &ring;
  }
  return nullptr;
}

[[gnu::hot]] void* Producer::Reserve(ThreadRing* ring, std::uint32_t bytes, bool critical) {
  ring->entry->produced.store(++ring->produced, std::memory_order_relaxed);
  const std::uint64_t to_end = ring->size - ring->place;
  const std::uint64_t pad = to_end < bytes ? to_end : 0;
  const std::uint64_t total = pad + bytes;
  const std::uint64_t limit =
      critical ? ring->size : ring->size - ring->size / format::kReserveDivisor;
  if (__builtin_expect(ring->head + total - ring->tail > limit, 0)) {
    const std::uint64_t tail = ring->entry->tail.load(std::memory_order_acquire);
    if (tail >= ring->tail && tail <= ring->head) ring->tail = tail;
    if (ring->head + total - ring->tail > limit) {
      ring->entry->dropped.store(++ring->dropped, std::memory_order_relaxed);
      return nullptr;
    }
  }
  if (pad != 0) {
    const RecordHeader header = MakeHeader(RecordKind::kPad, 0, pad, 0);
    std::memcpy(ring->data + ring->place, &header, sizeof header);
    ring->place = 0;
  }
  ring->pending = total;
  char* out = ring->data + ring->place;
  ring->place += bytes;
  if (ring->place == ring->size) ring->place = 0;
  return out;
}

void Producer::Commit(ThreadRing* ring) {
  ring->head += ring->pending;
  ring->entry->head.store(ring->head, std::memory_order_release);
}

bool Producer::HasRoom(std::uint32_t bytes) {
  const ThreadRing* ring = Ring();
  if (ring == nullptr) return true;
  const std::uint64_t to_end = ring->size - ring->place;
  const std::uint64_t total = bytes + (to_end < bytes ? to_end : 0);
  const std::uint64_t tail = ring->entry->tail.load(std::memory_order_acquire);
  const std::uint64_t believed = tail >= ring->tail && tail <= ring->head ? tail : ring->tail;
  return ring->head + total - believed <= ring->size - ring->size / format::kReserveDivisor;
}

[[gnu::hot]] void Producer::Span(std::uint32_t name, std::uint64_t begin, std::uint64_t end,
                                 std::uint8_t flags, std::int64_t step) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto* out = static_cast<format::SpanRecord*>(Reserve(ring, sizeof(format::SpanRecord), false));
  if (out == nullptr) return;
  *out = {MakeHeader(RecordKind::kSpan, flags, sizeof(format::SpanRecord), name), begin,
          end > begin ? end - begin : 0, step};
  Commit(ring);
}

[[gnu::hot]] void Producer::Scalar(std::uint32_t name, double value, std::int64_t step,
                                   std::uint8_t mode, std::uint64_t time) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto* out =
      static_cast<format::ScalarRecord*>(Reserve(ring, sizeof(format::ScalarRecord), false));
  if (out == nullptr) return;
  *out = {MakeHeader(RecordKind::kScalar, mode, sizeof(format::ScalarRecord), name), time, step,
          value};
  Commit(ring);
}

[[gnu::hot]] void Producer::Step(const format::StepRecord& record) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto* out = static_cast<format::StepRecord*>(Reserve(ring, sizeof record, true));
  if (out == nullptr) return;
  *out = record;
  out->header = MakeHeader(RecordKind::kStep, record.header.flags, sizeof record, 0);
  Commit(ring);
}

bool Producer::Stat(const format::StatRecord& record) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  auto* out = static_cast<format::StatRecord*>(Reserve(ring, sizeof record, false));
  if (out == nullptr) return false;
  *out = record;
  out->header =
      MakeHeader(RecordKind::kStat, record.header.flags, sizeof record, record.header.name);
  Commit(ring);
  return true;
}

bool Producer::StatMore(const format::StatMoreRecord& record) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  auto* out = static_cast<format::StatMoreRecord*>(Reserve(ring, sizeof record, false));
  if (out == nullptr) return false;
  *out = record;
  out->stat.header = MakeHeader(RecordKind::kStatMore, record.stat.header.flags, sizeof record,
                                record.stat.header.name);
  Commit(ring);
  return true;
}

void Producer::Histogram(const format::HistogramRecord& record) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto* out = static_cast<format::HistogramRecord*>(Reserve(ring, sizeof record, false));
  if (out == nullptr) return;
  *out = record;
  out->header =
      MakeHeader(RecordKind::kHistogram, record.header.flags, sizeof record, record.header.name);
  Commit(ring);
}

bool Producer::Tensor(const format::TensorRecord& record, const std::int64_t* shape,
                      const void* values) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const std::size_t shape_bytes = record.ndim * sizeof(std::int64_t);
  const std::size_t value_bytes =
      (record.header.flags & format::kInlineFlag) != 0 ? record.bytes : 0;
  const std::size_t used = sizeof record + shape_bytes + value_bytes;
  const std::size_t size = (used + 7) / 8 * 8;
  auto* out = static_cast<char*>(Reserve(ring, static_cast<std::uint32_t>(size), false));
  if (out == nullptr) return false;
  format::TensorRecord copy = record;
  copy.header = MakeHeader(RecordKind::kTensor, record.header.flags, size, record.header.name);
  std::memcpy(out, &copy, sizeof copy);
  if (shape_bytes > 0) std::memcpy(out + sizeof copy, shape, shape_bytes);
  if (value_bytes > 0) std::memcpy(out + sizeof copy + shape_bytes, values, value_bytes);
  std::memset(out + used, 0, size - used);
  Commit(ring);
  return true;
}

void Producer::Event(std::uint32_t kind, std::uint8_t severity, std::uint32_t subject,
                     const char* message, std::size_t message_length, const char* data,
                     std::size_t data_length, std::int64_t step, std::uint64_t time) {
  ThreadRing* ring = Ring();
  if (ring == nullptr) {
    header_->unringed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  message_length = message == nullptr ? 0 : CutText(message, message_length);
  // Half a JSON object is none: too long a one is left out.
  if (data == nullptr || data_length > format::kMaxTextBytes) data_length = 0;
  const std::size_t used = sizeof(format::EventRecord) + message_length + data_length;
  const std::size_t size = (used + 7) / 8 * 8;
  auto* out = static_cast<char*>(Reserve(ring, static_cast<std::uint32_t>(size), true));
  if (out == nullptr) return;
  const format::EventRecord record{MakeHeader(RecordKind::kEvent, severity, size, kind),
                                   time,
                                   step,
                                   subject,
                                   static_cast<std::uint16_t>(message_length),
                                   static_cast<std::uint16_t>(data_length)};
  std::memcpy(out, &record, sizeof record);
  if (message_length > 0) std::memcpy(out + sizeof record, message, message_length);
  if (data_length > 0) std::memcpy(out + sizeof record + message_length, data, data_length);
  std::memset(out + used, 0, size - used);
  Commit(ring);
}

void Producer::Disable(const char* reason, std::size_t length) {
  if (disabling_.exchange(1, std::memory_order_acq_rel) != 0) return;
  if (length > format::kMaxReasonBytes) length = format::kMaxReasonBytes;
  if (length == 0) {
    reason = "no reason given";
    length = std::strlen(reason);
  }
  std::memcpy(header_->disabled_reason, reason, length);
  header_->disabled_bytes.store(static_cast<std::uint32_t>(length), std::memory_order_release);
}

void Producer::CountSkipped(std::uint32_t reason, std::uint64_t n) {
  header_->skipped.fetch_add(n, std::memory_order_relaxed);
  // After the total: who reads the parts first never finds more in them.
  SkippedFor(reason)->fetch_add(n, std::memory_order_release);
}

std::atomic<std::uint64_t>* Producer::SkippedFor(std::uint32_t reason) {
  const std::string_view text = names_.Text(reason);
  if (!text.empty() && text.front() != format::kTensorMark) {
    for (format::SkipReason& one : header_->skip_reasons) {
      std::uint32_t name = one.name.load(std::memory_order_relaxed);
      if (name == 0 && one.name.compare_exchange_strong(name, reason, std::memory_order_relaxed)) {
        return &one.count;
      }
      if (name == reason) return &one.count;
    }
  }
  return &header_->skipped_other;
}

std::uint64_t Producer::RulesSequence() const {
  const format::ControlHeader* control = control_.load(std::memory_order_acquire);
  if (control == nullptr || rules_ == nullptr) return 0;
  return control->rules_sequence.load(std::memory_order_acquire);
}

int Producer::KnownCollection(std::uint32_t name, bool* whole) const {
  *whole = false;
  if (!names_.IsTensor(name)) return -1;
  std::string_view text = names_.Text(name);
  text.remove_prefix(1);
  const std::size_t end = text.find(format::kTensorMark);
  if (end == std::string_view::npos) return -1;
  *whole = end + 1 == text.size();
  text.remove_suffix(text.size() - end);
  for (std::size_t i = 0; i < std::size(format::kKnownCollections); ++i) {
    if (format::kKnownCollections[i] == text) return static_cast<int>(i);
  }
  return -1;
}

std::uint64_t Producer::ReadRules(format::ControlRule* out, std::uint32_t* unanswered_mask,
                                  std::uint64_t* slab_bytes, format::ControlCollection* collections,
                                  std::uint32_t* words, std::uint32_t room) const {
  const std::uint64_t sequence = RulesSequence();
  if (sequence == 0 || sequence % 2 != 0) return 0;
  // Acquire, each: the sequence is read again only after all of them. `out` may be read meanwhile.
  using Word [[gnu::may_alias]] = std::uint64_t;
  constexpr std::size_t kRuleWords = sizeof(format::ControlRule) / sizeof(Word);
  auto* to = reinterpret_cast<Word*>(out);
  for (std::size_t i = 0; i < format::kControlRules * kRuleWords; ++i) {
    __atomic_store_n(&to[i], __atomic_load_n(&rules_[i], __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
  }
  if (collections != nullptr) {
    auto* known = reinterpret_cast<Word*>(collections);
    const std::uint64_t* from = rules_ + format::kControlRules * kRuleWords;
    for (std::size_t i = 0; i < format::kControlCollections; ++i) {
      __atomic_store_n(&known[i], __atomic_load_n(&from[i], __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
    }
  }
  const std::uint32_t names = std::min({names_.count() + 1, WordsReady(), room});
  for (std::uint32_t i = 0; i < names; ++i) {
    __atomic_store_n(&words[i], words_[i].load(std::memory_order_acquire), __ATOMIC_RELAXED);
  }
  const format::ControlHeader* control = control_.load(std::memory_order_relaxed);
  __atomic_store_n(unanswered_mask, control->unanswered_mask.load(std::memory_order_acquire),
                   __ATOMIC_RELAXED);
  __atomic_store_n(slab_bytes, control->slab_bytes.load(std::memory_order_acquire),
                   __ATOMIC_RELAXED);
  return control->rules_sequence.load(std::memory_order_relaxed) == sequence ? sequence : 0;
}

std::uint64_t Producer::WindowsSequence() const {
  if (control_.load(std::memory_order_acquire) == nullptr || windows_ == nullptr) return 0;
  return windows_->sequence.load(std::memory_order_acquire);
}

std::uint64_t Producer::ReadWindows(char* out, std::size_t room, std::size_t* bytes) const {
  *bytes = 0;
  const std::uint64_t sequence = WindowsSequence();
  if (sequence == 0 || sequence % 2 != 0) return 0;
  const std::size_t length = windows_->bytes.load(std::memory_order_acquire);
  if (length > format::kMaxWindowsBytes || length > room) return 0;
  for (std::size_t at = 0; at < length; at += 8) {
    const std::uint64_t word = windows_->text[at / 8].load(std::memory_order_acquire);
    std::memcpy(out + at, &word, length - at < 8 ? length - at : 8);
  }
  *bytes = length;
  return windows_->sequence.load(std::memory_order_relaxed) == sequence ? sequence : 0;
}

std::uint64_t Producer::PlanEpoch() const {
  const format::ControlHeader* control = control_.load(std::memory_order_acquire);
  return control == nullptr ? 0 : control->epoch.load(std::memory_order_acquire);
}

std::uint32_t Producer::WordsReady() const {
  const format::ControlHeader* control = control_.load(std::memory_order_relaxed);
  if (control->abi_minor < 2) return word_count_;
  return std::min(control->words_ready.load(std::memory_order_acquire), word_count_);
}

std::uint32_t Producer::NameWord(std::uint32_t name) const {
  if (control_.load(std::memory_order_acquire) == nullptr || name >= WordsReady()) {
    return format::kNameUnanswered;
  }
  return words_[name].load(std::memory_order_acquire);
}

}  // namespace telltale::channel
