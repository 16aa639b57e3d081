// SPDX-License-Identifier: Apache-2.0
// The agent's side of one producer's arena: attaches, copies records out, validates the copies.
//
// Trust: the producer is not trusted. Every value is copied out of shared memory before it is
// checked; a malformed record ends the drain of its ring, is counted and skips the ring to its
// head. Thread safety: none; one consumer per arena, one thread.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "format/batch.h"

namespace telltale::channel {

struct ProducerInfo {
  std::array<std::uint8_t, 16> uuid{};
  std::array<std::uint8_t, 16> parent_uuid{};
  std::int32_t pid = 0;
  std::int32_t parent_pid = 0;
  std::uint64_t start_time_ticks = 0;  ///< Field 22 of /proc/PID/stat.
  std::int32_t rank = 0;               ///< As last set by the producer.
  std::uint8_t kind = 0;               ///< tt_process_kind.
  std::uint16_t abi_major = 0;
  std::uint16_t abi_minor = 0;
};

/// Cumulative counters of one producer; sum(taken + dropped) == produced holds at rest.
struct ProducerCounters {
  std::uint64_t produced = 0;            ///< Records that the probe tried to write.
  std::uint64_t dropped = 0;             ///< Of those, not written: ring full or no ring left.
  std::uint64_t names_folded = 0;        ///< Names that did not fit: cut, or without an id.
  std::uint64_t foreign_thread = 0;      ///< Step-machine calls from a second thread.
  std::uint64_t skipped = 0;             ///< Wanted and not recorded (tt_count_skipped and plan).
  std::uint64_t spans_thinned = 0;       ///< Spans left out by the span budgets.
  std::uint64_t raw_dropped = 0;         ///< Values of tensors that found no room on their way.
  std::uint64_t histogram_dropped = 0;   ///< Histograms likewise.
  std::uint64_t histograms_waiting = 0;  ///< To be computed yet: lost where the process has ended.
  std::uint64_t unanswered = 0;  ///< Tensors that were due before the plan had answered them.
  std::uint64_t malformed = 0;   ///< Found by the consumer.
  /// Of `skipped`, by reason. A reason whose name no drain has seen yet is not in it.
  struct Reason {
    std::string_view name;  ///< Valid until the next drain.
    std::uint64_t count = 0;
  };
  std::vector<Reason> skipped_for;
  std::uint64_t skipped_other = 0;  ///< Of `skipped`: without a reason, or beyond those kept apart.
};

/// Values of a tensor that are to be stored. Strings are interned as those of rows are.
struct DrainedTensor {
  std::string_view name, collection;
  std::int64_t time_ns = 0;
  std::int64_t step = -1;
  std::string_view mode;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  std::uint8_t dtype = 0;  ///< tt_dtype.
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;            ///< Those of dtype and shape.
  std::optional<std::uint32_t> slot;  ///< Of the slab; not checked against it. Else in `values`.
  std::string values;
};

/// Rows of one drain, with ord_ns = time_ns + duration and both on the run's clock; seq, attempt
/// are the agent's to fill. Strings are interned in the caller's pool.
struct Drained {
  format::Rows rows;
  std::vector<format::SpanRow> details;  ///< Spans of detail: held, not stored.
  std::vector<DrainedTensor> tensors;
  std::vector<format::RingPosition> positions;  ///< Where each ring that moved now stands.
  std::uint64_t records = 0;
  bool filling = false;  ///< A ring was more than a quarter full.
};

class Consumer {
 public:
  /// Maps and checks the arena (seals, magic, versions, sizes). A major version that is not ours
  /// gives Code::kVersion with both versions named.
  static Result<std::unique_ptr<Consumer>> Attach(UniqueFd arena);
  virtual ~Consumer() = default;

  virtual const ProducerInfo& info() = 0;
  virtual ProducerCounters counters() = 0;
  /// Empty, or why the probe switched itself off.
  virtual std::string disabled_reason() = 0;

  /// Names seen so far are 1..name_count(); a drain adds to them. The agent answers them in the
  /// control page.
  virtual std::uint32_t name_count() const = 0;
  /// Valid until the next drain. REQUIRES: 1 <= id <= name_count().
  virtual std::string_view name(std::uint32_t id) const = 0;

  /// Continues after positions that a journal already holds (a predecessor died between journal
  /// write and Commit).
  virtual void SkipTo(const std::vector<format::RingPosition>& positions) = 0;

  /// Copies out at most about `max_bytes` of records. `monotonic_to_run_ns` is added to
  /// CLOCK_MONOTONIC times. Does not free the rings: Commit does. Returns true when more is
  /// waiting.
  virtual bool Drain(std::size_t max_bytes, std::int64_t monotonic_to_run_ns, StringPool* pool,
                     Drained* out) = 0;
  /// Frees everything that was drained so far, once the journal has all of it: between the append
  /// and Commit no further Drain may lie, or its records are freed unwritten.
  virtual void Commit() = 0;
  /// Forgets what was drained since the last Commit, to drain it again (the journal refused it).
  virtual void Rollback() = 0;
};

}  // namespace telltale::channel
