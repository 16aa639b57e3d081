// SPDX-License-Identifier: Apache-2.0
// Attach, names, positions; record_reader.cc turns one copied record into a row.
#include "channel/consumer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "channel/clock_map.h"
#include "channel/name_list.h"
#include "channel/record_reader.h"
#include "format/channel_layout.h"
#include "format/records.gen.h"

namespace telltale::channel {
namespace {

using format::ArenaHeader;
using format::RingEntry;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status Unusable(const std::string& what) {
  return {Code::kUnusable, "arena refused: " + what + "; the producer is not recorded"};
}

/// One ring as the consumer sees it; offset and size as checked at Attach.
struct Ring {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t committed = 0;  ///< = tail.
  std::uint64_t position = 0;   ///< Drained up to here.
};

class ArenaConsumer final : public Consumer {
 public:
  ArenaConsumer(char* arena, std::size_t bytes) : arena_(arena), bytes_(bytes) {}
  ~ArenaConsumer() override { ::munmap(arena_, bytes_); }

  Status Open();

  const ProducerInfo& info() override {
    const std::int32_t rank = header()->rank.load(std::memory_order_relaxed);
    info_.rank = format::kIndexBound.Has(rank) ? rank : 0;
    return info_;
  }
  ProducerCounters counters() override;
  std::string disabled_reason() override;
  std::uint32_t name_count() const override { return static_cast<std::uint32_t>(names_.size()); }
  std::string_view name(std::uint32_t id) const override { return names_[id - 1]; }
  void SkipTo(const std::vector<format::RingPosition>& positions) override;
  bool Drain(std::size_t max_bytes, std::int64_t monotonic_to_run_ns, StringPool* pool,
             Drained* out) override;
  void Commit() override;
  void Rollback() override;

 private:
  const ArenaHeader* header() const { return reinterpret_cast<const ArenaHeader*>(arena_); }
  RingEntry& entry(std::size_t i) const {
    return reinterpret_cast<RingEntry*>(arena_ + directory_offset_)[i];
  }
  void ReadNames();
  /// Takes records of ring `i` up to `head`; returns the bytes taken.
  std::size_t DrainRing(std::size_t i, std::uint64_t head, std::size_t budget, RecordReader* reader,
                        Drained* out);

  char* arena_;
  std::size_t bytes_;
  std::uint64_t directory_offset_ = 0;
  std::uint64_t names_offset_ = 0;
  std::uint64_t names_bytes_ = 0;
  std::uint32_t name_limit_ = 0;
  format::ClockKind clock_ = format::ClockKind::kMonotonicNs;
  ProducerInfo info_;
  std::vector<Ring> rings_;
  NameList names_;
  std::uint64_t names_read_ = 0;  ///< Bytes of the names area.
  bool names_bad_ = false;
  std::uint64_t malformed_ = 0;      ///< Of records that are committed, and of names.
  std::uint64_t malformed_now_ = 0;  ///< Since the last commit: a rollback delivers them again.
  ClockMap clock_map_;
  std::string buffer_;
  std::size_t next_ring_ = 0;  ///< Where a drain begins, so that a full ring starves no other.
};

Status ArenaConsumer::Open() {
  // A private copy: the producer may change the header at any time.
  ArenaHeader h;
  std::memcpy(static_cast<void*>(&h), arena_, sizeof h);
  if (h.magic != format::kArenaMagic) return Unusable("no magic number");
  if (h.abi_major != format::kChannelMajor) {
    return {Code::kVersion, "arena of process " + std::to_string(h.pid) + " has channel version " +
                                std::to_string(h.abi_major) + "." + std::to_string(h.abi_minor) +
                                ", this telltale reads " + std::to_string(format::kChannelMajor) +
                                "." + std::to_string(format::kChannelMinor) +
                                "; install the same version on both sides"};
  }
  if (h.header_bytes < format::kArenaHeaderBytesMin || h.ring_entry_bytes != sizeof(RingEntry) ||
      h.arena_bytes != bytes_ || h.ring_count == 0 || h.ring_count > format::kMaxRings ||
      h.name_limit >= format::kMaxNames || h.clock_kind > 1) {
    return Unusable("sizes in its header are not what its version says");
  }
  const auto inside = [&](std::uint64_t offset, std::uint64_t size) {
    return offset >= format::kPageBytes && offset <= bytes_ && size <= bytes_ - offset;
  };
  if (!inside(h.directory_offset, h.ring_count * sizeof(RingEntry)) ||
      h.directory_offset % alignof(RingEntry) != 0 || !inside(h.names_offset, h.names_bytes)) {
    return Unusable("directory or names lie outside");
  }
  // Since boot; what is computed with it stays within 64 bits.
  if (!format::kLengthBound.Has(h.anchor_monotonic_ns)) {
    return Unusable("a time in its header cannot be");
  }
  directory_offset_ = h.directory_offset;
  names_offset_ = h.names_offset;
  names_bytes_ = h.names_bytes;
  name_limit_ = h.name_limit;
  clock_ = static_cast<format::ClockKind>(h.clock_kind);
  std::memcpy(info_.uuid.data(), h.uuid, 16);
  std::memcpy(info_.parent_uuid.data(), h.parent_uuid, 16);
  info_.pid = h.pid;
  info_.parent_pid = h.parent_pid;
  info_.start_time_ticks = h.start_time_ticks;
  info_.kind = h.process_kind;
  info_.abi_major = h.abi_major;
  info_.abi_minor = h.abi_minor;
  for (std::size_t i = 0; i < h.ring_count; ++i) {
    Ring ring;
    ring.offset = entry(i).offset;
    ring.size = entry(i).size;
    if (!inside(ring.offset, ring.size) || ring.offset % 64 != 0 || ring.size % 64 != 0 ||
        ring.size < 2 * format::kMaxRecordBytes) {
      return Unusable("a ring lies outside, or is too small");
    }
    ring.committed = ring.position = entry(i).tail.load(std::memory_order_relaxed);
    rings_.push_back(ring);
  }
  clock_map_ = ClockMap({h.anchor_ticks, h.anchor_monotonic_ns}, ReadClockPair(clock_));
  return {};
}

ProducerCounters ArenaConsumer::counters() {
  ProducerCounters c;
  const ArenaHeader& h = *header();
  const std::uint64_t unringed = h.unringed.load(std::memory_order_relaxed);
  c.produced = c.dropped = unringed;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    c.produced += entry(i).produced.load(std::memory_order_relaxed);
    c.dropped += entry(i).dropped.load(std::memory_order_relaxed);
  }
  c.names_folded = h.names_folded.load(std::memory_order_relaxed);
  c.foreign_thread = h.foreign_thread.load(std::memory_order_relaxed);
  // The parts before the total, which was counted first.
  for (const format::SkipReason& one : h.skip_reasons) {
    const std::uint32_t name = one.name.load(std::memory_order_relaxed);
    if (name == 0) break;
    if (name > names_.size()) continue;
    c.skipped_for.push_back({names_[name - 1], one.count.load(std::memory_order_acquire)});
  }
  c.skipped_other = h.skipped_other.load(std::memory_order_acquire);
  c.skipped = h.skipped.load(std::memory_order_relaxed);
  c.spans_thinned = h.spans_thinned.load(std::memory_order_relaxed);
  c.raw_dropped = h.raw_dropped.load(std::memory_order_relaxed);
  c.histogram_dropped = h.histogram_dropped.load(std::memory_order_relaxed);
  // Done before taken: what is done was taken before.
  const std::uint64_t done = h.histograms_done.load(std::memory_order_acquire);
  const std::uint64_t taken = h.histograms_taken.load(std::memory_order_relaxed);
  c.histograms_waiting = taken > done ? taken - done : 0;
  c.unanswered = h.unanswered.load(std::memory_order_relaxed);
  c.malformed = malformed_ + malformed_now_;
  return c;
}

std::string ArenaConsumer::disabled_reason() {
  const std::uint32_t length = header()->disabled_bytes.load(std::memory_order_acquire);
  if (length == 0) return {};
  return PrintableUtf8(
      {header()->disabled_reason, std::min<std::size_t>(length, format::kMaxReasonBytes)});
}

void ArenaConsumer::SkipTo(const std::vector<format::RingPosition>& positions) {
  for (const format::RingPosition& p : positions) {
    if (p.producer != info_.uuid || p.ring >= rings_.size()) continue;
    Ring& ring = rings_[p.ring];
    if (p.position > ring.committed) {
      ring.committed = ring.position = p.position;
      entry(p.ring).tail.store(p.position, std::memory_order_release);
    }
  }
}

void ArenaConsumer::ReadNames() {
  const std::uint64_t published = header()->names_published.load(std::memory_order_acquire);
  if (names_bad_ || published == names_read_) return;
  bool good = published <= names_bytes_ && published > names_read_;
  while (good && names_read_ < published) {
    const char* at = arena_ + names_offset_ + names_read_;
    const std::uint64_t left = published - names_read_;
    std::uint32_t length = 0;
    good = left >= sizeof length;
    if (!good) break;
    std::memcpy(&length, at, sizeof length);
    const std::uint64_t whole = 4 + (std::uint64_t{length} + 3) / 4 * 4;
    good = length <= format::kMaxTextBytes && whole <= left && names_.size() < name_limit_;
    if (!good) break;
    names_.Add(PrintableUtf8({at + sizeof length, length}));
    names_read_ += whole;
  }
  if (!good) {
    // Later names cannot be found any more; records that use them are malformed.
    names_bad_ = true;
    ++malformed_;
  }
}

std::size_t ArenaConsumer::DrainRing(std::size_t i, std::uint64_t head, std::size_t budget,
                                     RecordReader* reader, Drained* out) {
  Ring& ring = rings_[i];
  if (head == ring.position) return 0;
  if (head < ring.position || head - ring.position > ring.size ||
      head % format::kRecordAlign != 0) {
    ++malformed_now_;
    ring.position = head;
    return 0;
  }
  reader->SetThread(entry(i).tid.load(std::memory_order_relaxed));
  std::size_t taken = 0;
  bool more = true;
  while (more && ring.position < head && taken < budget) {
    const std::uint64_t place = ring.position % ring.size;
    const std::uint64_t piece =
        std::min({head - ring.position, ring.size - place,
                  std::uint64_t{std::max(budget - taken, format::kMaxRecordBytes)}});
    // Whole pieces end at the head or the ring's end, where a record must end too.
    const bool whole = piece == std::min(head - ring.position, ring.size - place);
    buffer_.assign(arena_ + ring.offset + place, piece);
    std::size_t at = 0;
    while (at < piece) {
      const ReadResult result = reader->Read(std::string_view(buffer_).substr(at), out);
      if (result.bytes == 0) {
        if (whole || piece - at >= format::kMaxRecordBytes) {
          ++malformed_now_;
          ring.position = head;
          return taken + at;
        }
        break;  // The record is cut by the budget: next time.
      }
      at += result.bytes;
      out->records += result.is_record ? 1 : 0;
    }
    ring.position += at;
    taken += at;
    more = whole;
  }
  return taken;
}

bool ArenaConsumer::Drain(std::size_t max_bytes, std::int64_t monotonic_to_run_ns, StringPool* pool,
                          Drained* out) {
  std::vector<std::uint64_t> heads(rings_.size());
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    heads[i] = entry(i).head.load(std::memory_order_acquire);
    out->filling = out->filling || heads[i] - rings_[i].committed > rings_[i].size / 4;
  }
  // After the heads: names come before the records that use them.
  ReadNames();
  clock_map_.Update(ReadClockPair(clock_));
  RecordReader reader(names_, info(), clock_map_, monotonic_to_run_ns, pool);
  std::size_t budget = max_bytes;
  for (std::size_t n = 0; n < rings_.size() && budget > 0; ++n) {
    const std::size_t i = (next_ring_ + n) % rings_.size();
    const std::uint64_t before = rings_[i].position;
    const std::size_t taken = DrainRing(i, heads[i], budget, &reader, out);
    budget -= std::min(budget, taken);
    if (rings_[i].position != before) {
      format::RingPosition position;
      position.producer = info_.uuid;
      position.ring = static_cast<std::uint16_t>(i);
      position.position = rings_[i].position;
      out->positions.push_back(position);
    }
  }
  malformed_now_ += reader.malformed();
  next_ring_ = (next_ring_ + 1) % rings_.size();
  bool more = false;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    more = more || rings_[i].position != entry(i).head.load(std::memory_order_relaxed);
  }
  return more;
}

void ArenaConsumer::Commit() {
  malformed_ += std::exchange(malformed_now_, 0);
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    if (rings_[i].committed == rings_[i].position) continue;
    rings_[i].committed = rings_[i].position;
    entry(i).tail.store(rings_[i].position, std::memory_order_release);
  }
}

void ArenaConsumer::Rollback() {
  malformed_now_ = 0;
  for (Ring& ring : rings_) ring.position = ring.committed;
}

}  // namespace

Result<std::unique_ptr<Consumer>> Consumer::Attach(UniqueFd arena) {
  struct stat info {};
  if (::fstat(arena.get(), &info) != 0) {
    return Status{Code::kIo, std::string("arena refused: fstat: ") + std::strerror(errno)};
  }
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes < 2 * format::kPageBytes || bytes > format::kMaxArenaBytes) {
    return Unusable("its size is " + std::to_string(bytes) + " bytes");
  }
  // Unsealed, the producer could truncate it under us: a SIGBUS.
  const int seals = ::fcntl(arena.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return Unusable("it is not sealed");
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena.get(), 0);
  if (map == MAP_FAILED) {
    return Status{Code::kIo, std::string("arena refused: mmap: ") + std::strerror(errno)};
  }
  auto consumer = std::make_unique<ArenaConsumer>(static_cast<char*>(map), bytes);
  TELLTALE_RETURN_IF_ERROR(consumer->Open());
  return std::unique_ptr<Consumer>(std::move(consumer));
}

}  // namespace telltale::channel
