// SPDX-License-Identifier: Apache-2.0
// The agent's own rows until the journal has them: events wait (they are few and must not be lost),
// counters are written when they have changed.
// Thread safety: none; the agent's thread.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/batch.h"

namespace telltale::agent {

/// Marks in the journal, kept with a batch's ring positions, say what was announced already, so
/// that a new agent does not say it twice. The ring numbers are beyond those of any arena.
inline constexpr std::uint16_t kProcessMarkRing = 0xffff;  ///< Of a producer: 1 start, 2 exit.
inline constexpr std::uint16_t kAttemptMarkRing = 0xfffe;  ///< Of producer 0: attempt × 2, end + 1.
inline constexpr std::uint16_t kDisabledMarkRing = 0xfffd;  ///< Of a producer: 1 probe.disabled.
// 0xfffc is format::kReleasedRing.
// 0xfff3, 0xfff4, 0xfff5 and 0xfff7 are of stops (agent/stopper.h).
/// Of producer 0: 1 while less is taken than planned, as the newest event `governor` says.
inline constexpr std::uint16_t kThinnedMarkRing = 0xfff6;
inline constexpr std::uint16_t kLeftMarkRing = 0xfff8;     ///< Of a producer: 1 producer.left.
inline constexpr std::uint16_t kRequestMarkRing = 0xfffb;  ///< Of a request's id: 1 answered.
/// Of producer 0: tensors whose values were taken out of rings, and what became of them is known.
inline constexpr std::uint16_t kValuesTakenMarkRing = 0xfffa;
inline constexpr std::uint16_t kValuesSettledMarkRing = 0xfff9;
inline constexpr std::uint16_t kFirstMarkRing = 0xfff0;

struct PendingEvent {
  std::int64_t time_ns = 0;  ///< Run clock.
  std::string kind;
  std::string severity = "info";
  std::string subject;
  std::string message;
  std::string data;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  std::vector<format::RingPosition> marks;  ///< Journalled in the same batch.
};

class Outbox {
 public:
  void Add(PendingEvent event) { events_.push_back(std::move(event)); }
  bool empty() const { return events_.empty(); }
  /// Copies what waits into the batch; the rows' texts stay ours until Sent() or the next call.
  void AddTo(std::uint32_t attempt, format::Batch* batch);
  /// The batch is in the journal.
  void Sent();

 private:
  std::deque<PendingEvent> events_;
  std::size_t offered_ = 0;
};

/// Writes the attempt into the rows that a consumer made.
void StampAttempt(std::uint32_t attempt, format::Rows* rows);

/// Emits a counter's row when its value differs from the one last journalled.
class Ledger {
 public:
  struct Key {
    std::string name;
    std::string subject;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Facts {
    std::string_view unit;
    bool loss = false;
    std::int32_t rank = 0;
    std::int32_t pid = 0;
  };
  void Set(Key key, std::uint64_t value, Facts facts);
  /// Rows of what has changed since the last Sent(); texts are ours as long as the ledger lives.
  void AddTo(std::uint32_t attempt, std::int64_t time_ns, format::Batch* batch);
  void Sent();

 private:
  struct Entry {
    std::uint64_t value = 0;
    std::uint64_t offered = 0;
    std::uint64_t sent = 0;
    Facts facts;
  };
  std::map<Key, Entry> entries_;
};

}  // namespace telltale::agent
