// SPDX-License-Identifier: Apache-2.0
// The look-back ring: the newest spans of detail, which are too many to be stored at every step,
// held in memory. When a finding opens, or somebody asks, those of the steps before are given to
// the journal, and those of the steps after as they come. Bounded by bytes; what falls out is
// counted. An agent that dies takes its ring along. docs/guide/windows.md.
//
// Thread safety: none; the agent's thread. Time comes from the caller.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/outbox.h"
#include "base/status.h"
#include "format/batch.h"
#include "store/requests.h"

namespace telltale::agent {

inline constexpr std::uint64_t kLookBackBytes = 32ULL << 20;

class LookBack {
 public:
  /// `bytes`: bound on what is held; 0: nothing is, and requests are refused.
  explicit LookBack(std::uint64_t bytes);

  bool on() const { return room_ > 0; }
  /// The steps that go on now are recorded in full.
  bool wants_all() const;

  /// What a drain gave: takes `details`, and gives those to rows->spans that are stored as they
  /// come. Counts once the journal has the batch.
  void Offer(const std::vector<format::SpanRow>& details, format::Rows* rows);
  /// Whether it has it.
  void Settle(bool taken);

  /// A request of kind "lookback", answered in `outbox`, by a watcher's only where there is
  /// something to be said. `now_ns`: run clock. Not ok: it is refused.
  Status Ask(const store::Request& request, std::int64_t now_ns, Outbox* outbox);
  /// Says what was kept, once that is over.
  void Poll(std::int64_t now_ns, Outbox* outbox);
  /// A process has ended, and all of it was taken.
  void Gone(std::int32_t pid);
  /// The run ends: no more steps come.
  void End() { ended_ = true; }

  /// Rows wait for a batch.
  bool HasRows() const { return !kept_.empty(); }
  /// They do, or spans come at their full rate.
  bool waits() const { return HasRows() || wants_all(); }
  /// Adds some of them; the names' texts stay ours until Settle.
  void AddTo(std::uint32_t attempt, std::int64_t now_ns, format::Batch* batch);

  void CountInto(pid_t pid, Ledger* ledger) const;

 private:
  struct Held {
    std::int64_t time_ns;
    std::int64_t duration_ns;
    std::int64_t step;
    std::uint32_t name;     ///< Of names_.
    std::uint16_t process;  ///< Of processes_.
    std::uint8_t mode;      ///< tt_mode.
    std::uint8_t category;
    std::int32_t tid;
    bool kept;  ///< Given to the journal.
  };
  struct Process {
    std::int32_t pid = 0;
    std::int32_t rank = 0;
    std::array<std::int64_t, 4> newest{-1, -1, -1, -1};  ///< Step of each mode that has ended.
    std::int64_t full_until = -1;  ///< TRAIN steps up to this one are stored as they come.
    bool gone = false;             ///< It has ended, and all of it was drained.
    bool free = false;             ///< Nothing refers to it.
  };
  /// What was asked for, until it is over.
  struct Keep {
    store::RequestId id{};
    std::string who, rule, incident, why;
    std::string early;  ///< Why it is over before all of its steps were there; else empty.
    std::int64_t asked_ns = 0;
    std::uint64_t before = 0, after = 0, left_out = 0;  ///< Spans.
    std::int64_t first = -1, last = -1;                 ///< TRAIN steps of what was kept.
    std::int64_t oldest = -1;  ///< TRAIN step that the ring reached back to.
    std::vector<std::pair<std::uint16_t, std::int64_t>> waits;  ///< Process, its last step.

    void Saw(const Held& span);
  };
  /// TRAIN steps [first, last].
  struct Range {
    std::int64_t first, last;
  };
  struct Asked;  ///< A request's body.

  /// Nothing: there are too many at a time.
  std::optional<std::uint16_t> ProcessOf(std::int32_t pid, std::int32_t rank);
  /// Makes the places of processes free that have ended and of which nothing is held.
  void FreePlaces();
  std::uint32_t NameOf(std::string_view name);
  Held HeldOf(const format::SpanRow& row, std::uint16_t process);
  format::SpanRow RowOf(const Held& span) const;
  void Forget();
  void Take(const Asked& asked, Keep* keep);
  static void Say(const Keep& keep, std::int64_t now_ns, Outbox* outbox);

  const std::size_t room_;       ///< Spans.
  const std::size_t name_room_;  ///< Bytes.
  std::deque<Held> ring_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> name_ids_;
  std::size_t name_bytes_ = 0;
  std::vector<Process> processes_;
  std::vector<std::uint16_t> free_;  ///< Of processes_.
  std::uint64_t looked_ = 0;         ///< received_ at the last search for free ones.
  std::vector<Held> offered_;        ///< Of the batch that the journal is given next.
  std::vector<Held> offered_full_;   ///< Of it, those that are stored as they come.
  std::vector<std::array<std::int64_t, 3>> offered_steps_;  ///< Process, mode, step.
  std::deque<Held> kept_;                                   ///< To be written.
  std::size_t writing_ = 0;                                 ///< So many of them are in that batch.
  std::vector<Keep> keeps_;
  bool ended_ = false;
  std::uint64_t received_ = 0, fell_out_ = 0, stored_ = 0;
  std::uint64_t no_place_ = 0;  ///< Spans of processes beyond the most; of fell_out_.
};

}  // namespace telltale::agent
