// SPDX-License-Identifier: Apache-2.0
// Writes one writer's folder of a run directory: journals, then Parquet segments sealed from them.
// Recovers its own folder when it opens it: sequence numbers, ring positions and the watermark go
// on.
//
// Thread safety: none, but for the sync and the seal, which run on threads of their own inside.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "format/batch.h"

namespace telltale::store {

struct WriterOptions {
  std::int64_t sync_interval_ns = 1'000'000'000;
  std::int64_t seal_interval_ns = 120'000'000'000;  ///< Age at which a journal is sealed...
  std::uint64_t seal_bytes = 32U << 20;             ///< ...or size, whichever comes first.
  std::int64_t delete_delay_ns = 60'000'000'000;  ///< A sealed journal is deleted this much later.
  std::uint64_t min_free_bytes = 64U << 20;       ///< Below this the disk counts as full.
  const Clock* clock = &Clock::System();
};

struct WriterCounters {
  std::uint64_t rows = 0;
  std::uint64_t journal_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t late_rows = 0;       ///< Rows whose ord_ns was raised to the watermark.
  std::uint64_t write_failures = 0;  ///< Batches refused by the disk (the caller keeps them).
  std::uint64_t salvaged_tails = 0;  ///< Torn tails cut at recovery.
  std::uint64_t sync_failures = 0;   ///< Syncs that failed; each closed its journal.
};

inline constexpr std::int64_t kSyncPatienceNs = 5'000'000'000;

class Writer {
 public:
  /// Creates or reopens `folder` (0700). `name` is the writer's name (agent-HOST, watch). Takes a
  /// lock on the folder; Code::kRunning names the holder's pid. CLOCK_MONOTONIC to run-clock offset
  /// is fixed at the first open and read back on later ones of the same boot.
  static Result<std::unique_ptr<Writer>> Open(std::filesystem::path folder, std::string name,
                                              WriterOptions options = {});
  virtual ~Writer() = default;

  /// Appends rows as one or more batches; each is atomic. Fills seq, raises ord_ns to the last
  /// watermark, splits what is larger than a batch may be (the positions go with the last part, so
  /// callers drain at most 64 KiB of ring at a time). On failure (disk full) nothing of it is in
  /// the journal and the caller may try again; the journal stays well-formed.
  virtual Status Append(format::Batch batch) = 0;

  /// Does what is due: syncs, rotates and seals, deletes old journals. Never blocks on the disk for
  /// long: the work is handed to threads. Call it a few times a second.
  virtual Status Tick() = 0;

  /// Has the thread sync now: for what must not be done before the disk knows of it.
  virtual void Sync() = 0;
  /// What was appended before the last Sync() is on the disk. Also true where the disk has refused
  /// (counters().sync_failures) or has not answered for kSyncPatienceNs: it must not hold up an
  /// action that may be about itself, and whoever is killed repeats nothing all the same.
  virtual bool Synced() const = 0;

  /// Positions found in the folder's journals at Open, newest per ring, without those of producers
  /// that a batch released (format::kReleasedRing).
  virtual std::vector<format::RingPosition> RecoveredPositions() const = 0;
  /// Where who wrote here before ended without its end record: the watermark of its last batch.
  virtual std::optional<std::int64_t> unended_since_ns() const = 0;
  /// Offset to add to CLOCK_MONOTONIC to get the run's clock.
  virtual std::int64_t monotonic_to_run_ns() const = 0;
  virtual WriterCounters counters() const = 0;
  /// True while the disk refuses writes.
  virtual bool disk_full() const = 0;

  /// Seals everything and writes the end record: readers then know that nothing follows. With
  /// `ended` false only syncs and closes (the run goes on with a later writer).
  virtual Status Close(bool ended) = 0;
};

}  // namespace telltale::store
