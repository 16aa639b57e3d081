// SPDX-License-Identifier: Apache-2.0
// The producer's side of an arena: makes it, registers it with the supervisor, writes records.
//
// Thread safety: the record functions may be called from any thread; each thread writes its own
// ring, so no record waits for another thread. Open and PollAccept: one thread at a time.
// Invariants: a record is visible only as a whole (head is stored after it); what does not fit is
// dropped and counted; the consumer's tail is a hint that is checked.
// Lives in memory that is zero at first. Runs in the user's process: no exceptions, no allocation,
// no stdio, nothing that blocks.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "channel/name_table.h"
#include "channel/slab_writer.h"
#include "channel/ticks.h"
#include "format/channel_layout.h"
#include "format/control_collections.h"

namespace telltale::channel {

/// Sizes of an arena.
struct ArenaPlan {
  std::uint64_t arena_bytes;  ///< What is allocated at the start.
  std::uint64_t main_ring_bytes;
  std::uint64_t ring_bytes;  ///< Of each further ring.
  std::uint32_t rings;       ///< The main one included.
  std::uint32_t name_limit;
  std::uint64_t more_names_bytes;  ///< Allocated as names come; no memory until then.
};
/// 16 MiB: 12 for the main thread, 13 chunks of 256 KiB. A million names of 120 bytes.
inline constexpr ArenaPlan kTrainerPlan{16 << 20, 12 << 20, 256 << 10, 14, 1 << 20, 128 << 20};
/// The same where address space or the size of files has a limit: only what is allocated.
inline constexpr ArenaPlan kLimitedTrainerPlan{16 << 20, 12 << 20, 256 << 10, 14, 16383, 0};
/// 1 MiB, for loader workers and others.
inline constexpr ArenaPlan kSmallPlan{1 << 20, 512 << 10, 64 << 10, 5, 2047, 0};

enum class OpenResult {
  kOk,
  kNoMemory,      ///< memfd, fallocate or mmap failed.
  kNoSupervisor,  ///< Nobody listens, its queue is full, or it is another user's (`refusal`).
};

class Producer {
 public:
  /// What a thread writes to; one a ring of the directory, in private memory.
  struct alignas(64) ThreadRing {
    format::RingEntry* entry;
    char* data;
    std::uint64_t size;
    std::uint64_t head;   ///< As published.
    std::uint64_t place;  ///< head % size.
    std::uint64_t tail;   ///< Last believed.
    std::uint64_t produced;
    std::uint64_t dropped;
    std::uint64_t pending;  ///< Bytes between Reserve and Commit.
  };

  /// Makes an arena; with `socket_path` registers it. `parent_uuid` may be null. Without a path the
  /// caller takes the descriptor by TakeArenaFd (tests, benchmarks).
  OpenResult Open(const ArenaPlan& plan, std::uint8_t process_kind, std::int32_t rank,
                  format::ClockKind clock, const std::uint8_t* parent_uuid,
                  const char* socket_path);
  /// Gives back what Open has mapped, if anything. REQUIRES: no thread has recorded anything.
  void Close();
  int TakeArenaFd();
  /// Maps a control page (takes the descriptor); false where it is none.
  bool UseControlPage(int fd);

  /// Looks for the supervisor's answer, waiting at most `wait_ms`. Cheap once it has come.
  void PollAccept(int wait_ms);
  /// True while the answer has not come.
  bool awaiting_accept() const { return socket_.load(std::memory_order_relaxed) >= 0; }

  /// In a forked child: the rings of producers made so far are not this process's to touch.
  static void ForgetAfterFork();

  std::uint64_t Now() const { return Ticks(clock_); }
  std::uint32_t Intern(const char* text, std::size_t length) { return names_.Intern(text, length); }
  bool IsTensor(std::uint32_t name) const { return names_.IsTensor(name); }

  /// The calling thread's ring, made on its first record; null where none is left.
  ThreadRing* Ring();

  /// Room for a record of `bytes` (a multiple of 8), or null: dropped and counted.
  static void* Reserve(ThreadRing* ring, std::uint32_t bytes, bool critical);
  static void Commit(ThreadRing* ring);
  /// Whether a record of `bytes` that is not critical would find room in the calling thread's ring
  /// now. True where it has no ring: that is counted when the record comes.
  bool HasRoom(std::uint32_t bytes);

  void Span(std::uint32_t name, std::uint64_t begin, std::uint64_t end, std::uint8_t flags,
            std::int64_t step);
  void Scalar(std::uint32_t name, double value, std::int64_t step, std::uint8_t mode,
              std::uint64_t time);
  void Step(const format::StepRecord& record);
  /// False, here and below: dropped and counted.
  bool Stat(const format::StatRecord& record);
  bool StatMore(const format::StatMoreRecord& record);
  void Histogram(const format::HistogramRecord& record);
  /// `record` with its kind's flags and its `bytes`; `shape` has record.ndim sizes; `values` are
  /// record.bytes bytes where the flags have kInlineFlag, else unused.
  bool Tensor(const format::TensorRecord& record, const std::int64_t* shape, const void* values);
  void Event(std::uint32_t kind, std::uint8_t severity, std::uint32_t subject, const char* message,
             std::size_t message_length, const char* data, std::size_t data_length,
             std::int64_t step, std::uint64_t time);

  void SetRank(std::int32_t rank) { header_->rank.store(rank, std::memory_order_relaxed); }
  /// Publishes why the probe is off. The first reason stays.
  [[gnu::cold]] void Disable(const char* reason, std::size_t length);
  /// `reason`: a name id; 0: none.
  void CountSkipped(std::uint32_t reason, std::uint64_t n);
  void CountSkipped(std::string_view reason, std::uint64_t n) {
    CountSkipped(reason.empty() ? 0 : Intern(reason.data(), reason.size()), n);
  }
  void CountThinned(std::uint64_t n) {
    header_->spans_thinned.fetch_add(n, std::memory_order_relaxed);
  }
  void CountRawDropped() { header_->raw_dropped.fetch_add(1, std::memory_order_relaxed); }
  void CountHistogramsDropped(std::uint64_t n) {
    header_->histogram_dropped.fetch_add(n, std::memory_order_relaxed);
  }
  /// A sample for a histogram waits; what never becomes a record is lost with the process.
  void CountHistogramTaken() { header_->histograms_taken.fetch_add(1, std::memory_order_relaxed); }
  /// Its record was given.
  void CountHistogramDone() { header_->histograms_done.fetch_add(1, std::memory_order_release); }
  void CountUnanswered() { header_->unanswered.fetch_add(1, std::memory_order_relaxed); }
  /// A name that did not fit, but for those that Intern counts.
  void CountNameFolded() { header_->names_folded.fetch_add(1, std::memory_order_relaxed); }
  void CountForeignThread() { header_->foreign_thread.fetch_add(1, std::memory_order_relaxed); }

  /// Changes with each edit of the rules; odd while one is being written. 0: no control page yet,
  /// or none with rules.
  std::uint64_t RulesSequence() const;
  /// Copies the rules as of the sequence number that it returns; 0: they are being written, or
  /// there are none, and `out` holds nothing of use. Stores atomically, word by word: a thread that
  /// reads `out` so meanwhile gets old words and new ones.
  /// `collections`: kControlCollections of them, or null. `words`: room for those of the names
  /// below `room`, or null; of a name that is not there yet none is stored.
  std::uint64_t ReadRules(format::ControlRule* out, std::uint32_t* unanswered_mask,
                          std::uint64_t* slab_bytes,
                          format::ControlCollection* collections = nullptr,
                          std::uint32_t* words = nullptr, std::uint32_t room = 0) const;
  /// Of a tensor's name id: the place of its collection in format::kKnownCollections, or -1;
  /// `whole` is true where it stands for the collection as such (its name is empty).
  int KnownCollection(std::uint32_t name, bool* whole) const;
  /// Changes with each edit of the windows of detail; odd while one is being written. 0: none were
  /// ever published, or a page without.
  std::uint64_t WindowsSequence() const;
  /// Copies their text, of at most kMaxWindowsBytes, as of the sequence number that it returns; 0:
  /// it is being written, or there is none.
  std::uint64_t ReadWindows(char* out, std::size_t room, std::size_t* bytes) const;
  /// The control page's flags (format::kControl...); 0 where there is no page.
  std::uint32_t ControlFlags() const {
    const format::ControlHeader* control = control_.load(std::memory_order_acquire);
    return control == nullptr ? 0 : control->flags.load(std::memory_order_relaxed);
  }
  /// Counts the plans published so far.
  std::uint64_t PlanEpoch() const;
  /// The control page's word for a name; kNameUnanswered past the page.
  std::uint32_t NameWord(std::uint32_t name) const;
  /// Where raw values go.
  SlabWriter& slab() { return slab_; }

  const std::uint8_t* uuid() const { return header_->uuid; }
  const format::ArenaHeader* header() const { return header_; }
  /// Why the supervisor refused, or why it was not asked, or empty.
  const char* refusal() const { return refusal_; }

 private:
  static std::uint32_t NextSerial();
  [[gnu::cold]] ThreadRing* ClaimRing();
  /// What is allocated later lies before `rings_offset`, a multiple of the page.
  bool MakeArena(const ArenaPlan& plan, std::uint64_t rings_offset);
  bool Register(const char* socket_path, std::uint8_t process_kind);
  std::atomic<std::uint64_t>* SkippedFor(std::uint32_t reason);
  /// Of the control page, those that have memory. REQUIRES: there is one.
  std::uint32_t WordsReady() const;
  void CloseSocket();

  char* arena_;  ///< Null: not open.
  std::uint64_t arena_bytes_;
  format::ArenaHeader* header_;
  format::RingEntry* directory_;
  ThreadRing rings_[16];
  std::uint32_t ring_count_;
  std::uint32_t serial_;  ///< Tells this producer's threads from those of one before a fork.
  NameTable names_;
  format::ClockKind clock_;
  int arena_fd_;
  std::atomic<int> socket_;
  std::uint64_t socket_inode_;
  std::atomic<const format::ControlHeader*> control_;  ///< Stored last (release).
  const std::atomic<std::uint32_t>* words_;
  std::uint32_t word_count_;
  const std::uint64_t* rules_;             ///< kControlRules ControlRule; null: a page without.
  const format::ControlWindows* windows_;  ///< Null: a page without.
  SlabWriter slab_;
  std::atomic<std::uint32_t> disabling_;
  char refusal_[240];
};

}  // namespace telltale::channel
