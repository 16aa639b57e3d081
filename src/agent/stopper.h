// SPDX-License-Identifier: Apache-2.0
// Carries a request of kind "stop" out on the processes of this machine: lets them save a
// checkpoint where they have said that they can, sends each SIGTERM, waits, sends SIGKILL where
// that was asked for, and gives an account of each. By pidfd alone, so that a number that the
// kernel has given to somebody else is never signalled.
//
// What outlives an agent that is killed: the journal has that a signal is about to be sent, then it
// is sent, then the journal has what became of it. Who finds the first without the last sends it
// again, so a signal comes at least once, and no sentence is written before it is true. All of it
// belongs to one request: the next request signals anew.
//
// A request that comes while another one is carried out is refused, unless it is stricter, which is
// to say that some signal comes sooner by it. Then it takes the other one's place: what the other
// one had sent stays sent, and nothing comes later than either of them asks. The answer of the one
// and the beginning of the other are one batch of the journal, so an agent finds one of them open.
//
// Thread safety: none; the agent's thread.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/outbox.h"
#include "base/process.h"
#include "base/status.h"
#include "format/batch.h"
#include "store/requests.h"

namespace telltale::agent {

// Marks of stops in the journal (docs/formats/requests.md); each counts up.

/// Under a process's uuid: what it has said that it does before it is stopped. Bits: StopReady.
inline constexpr std::uint16_t kStopReadyRing = 0xfff7;
/// Under the name of a request and a process (Stopper::NameOf): its answer, a StopAnswer.
inline constexpr std::uint16_t kStopAnswerRing = 0xfff5;
/// Under the same name: how far its signals are, a Delivery of SIGTERM in the low four bits, one of
/// SIGKILL in the next four. Under the request's id, once it is answered: what it did that may end
/// the training, bits of Did in the low eight; above them a number, the greatest one counts.
inline constexpr std::uint16_t kStopSignalRing = 0xfff4;
/// Under the request's id and names of it: when it began, SIGTERM and SIGKILL, and what it has
/// taken over from the request whose place it took; run clock. Under one more, which signals it has
/// sent: bits of Did.
inline constexpr std::uint16_t kStopClockRing = 0xfff3;

enum class StopReady : std::uint8_t {
  kNone = 0,
  kSaves = 1,  ///< It saves a checkpoint.
  kTrial = 6,  ///< It gives up a trial, and its process goes on.
  kBoth = 7,
};
enum class StopAnswer : std::uint8_t {
  kNone = 0,
  kSaved = 1,   ///< It has done what it does before it is stopped.
  kFailed = 2,  ///< It has tried to.
  kKept = 3,    ///< It goes on: only the trial in it was given up.
};
enum class Delivery : std::uint8_t {
  kNone = 0,
  kBegun = 1,     ///< About to be sent: an agent that died meanwhile may have sent it or not.
  kSent = 2,      ///< The kernel has taken it.
  kHadEnded = 3,  ///< There was no process any more.
  kFailed = 4,    ///< It cannot be sent to this process.
  kUnknown = 5,   ///< There was no process any more; an agent that died may have sent it before.
};
/// What a stop did that may have ended the training.
enum Did : std::uint8_t {
  kSentTerm = 1,
  kSentKill = 2,
  kPerhapsTerm = 4,  ///< An agent that died may have sent it.
  kPerhapsKill = 8,
  kHasSaved = 16,  ///< A process has saved for it.
  kUnsaved = 32,   ///< A process has ended without having saved for it.
  kLivesOn = 64,   ///< It was answered while some lived on.
};

class Stopper {
 public:
  using Uuid = std::array<std::uint8_t, 16>;
  /// A process that may be stopped: a trainer that has a channel, or the root of the training.
  struct Target {
    Uuid uuid{};  ///< Zeros: the root.
    std::int32_t pid = 0;
    std::int32_t rank = 0;
    int pidfd = -1;
    bool ended = false;
  };
  /// The position that the journal had under a name and ring when this agent began; 0: none.
  using PositionOf = std::function<std::uint64_t(const Uuid& name, std::uint16_t ring)>;
  /// pidfd_send_signal: 0 or errno.
  using Signal = std::function<int(int pidfd, int signal)>;

  /// Under which marks of what `request` means for `process` are kept.
  static Uuid NameOf(const store::RequestId& request, const Uuid& process);

  explicit Stopper(PositionOf position_of, Signal signal = {});

  /// Rows of a batch of one process that the journal is given next: marks to go with them are
  /// added. They count once the batch is taken.
  void Offer(const format::Rows& rows, const Uuid& uuid, std::vector<format::RingPosition>* marks);
  void Settle(bool taken);
  /// The journal has all that these processes had said by now. A stop waits for that of each: one
  /// may have said a moment ago that it saves, or while no agent was there.
  void Drained(const std::vector<Uuid>& read);

  /// Whether an agent before us has begun with it. Those are to be taken first.
  bool HasBegun(const store::RequestId& request) const;
  /// A request that no journal has answered. kUsage: it makes no sense; kRunning: another one is
  /// being carried out, and this one is no stricter. Else it is answered in time.
  Status Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox);
  /// A request of this attempt that an agent before us has answered: it may have ended the
  /// training.
  void Recall(const store::Request& request);
  /// Goes on. `now_ns`: run clock.
  void Poll(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);
  /// The number of what is sent once the disk has all that is in the outbox; 0: nothing.
  std::uint64_t waits_for() const { return to_send_.empty() ? 0 : round_; }
  /// The disk has what waits_for() gave this number for: sends it. Poll does so too where the disk
  /// takes nothing for a while: a stop may be about the disk itself.
  void Journalled(std::uint64_t number, const std::vector<Target>& targets, std::int64_t now_ns,
                  Outbox* outbox);

  /// The recording ends: answers what is not answered yet.
  void Close(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);

  bool active() const { return stop_.has_value(); }
  /// The one that is being carried out; zeros: none.
  store::RequestId request() const { return stop_ ? stop_->id : store::RequestId{}; }
  /// SIGKILL was asked for, and somebody lives whom it is for. `active()` until that is done.
  bool owes_kill() const;
  /// The next attempt of the run begins on this machine while SIGKILL is owed to processes of this
  /// one: it comes now, so that they and we leave the machine and the journal to that attempt.
  void NextAttemptBegan(std::int64_t now_ns);
  /// The training has ended so. Adds to what is said of it (run.attempt_end) which stop ended it,
  /// where one did: `stopped`, {"request", "who", "why", ...}, with "perhaps" where an agent that
  /// died may have sent the signal or not. A training that ends by itself, before a signal was sent
  /// or long after it, was stopped by nobody. Of a request that took another one's place, once it
  /// has sent a signal itself or where the other one had sent none.
  void AddToEnd(const ProcessExit& exit, const std::vector<Target>& targets,
                nlohmann::ordered_json* data, std::string* message);

 private:
  /// One that the stop has seen; of those that are gone, what became of them.
  struct Process {
    std::int32_t pid = 0;
    std::int32_t rank = 0;
    bool root = false;
    bool ended = false;
    StopAnswer answer = StopAnswer::kNone;
    Delivery term = Delivery::kNone;
    Delivery kill = Delivery::kNone;
    std::int64_t since_ns = 0;  ///< This agent has known it for this stop since then.
  };
  static constexpr std::int64_t kNeverNs = std::numeric_limits<std::int64_t>::max();
  struct Stop {
    store::RequestId id{};
    std::string who, why, rule, incident;
    bool checkpoint = true;
    bool kill = false;
    std::int64_t grace_ns = 0;
    bool again = false;  ///< An agent before us has begun it.
    std::int64_t begun_ns = 0;
    std::int64_t wait_until_ns = 0;      ///< Checkpoints are waited for until then at most.
    std::int64_t kill_by_ns = kNeverNs;  ///< Of the one whose place it took.
    /// Run clock of the first SIGTERM, as decided, then as sent; 0: none. Where the one whose place
    /// it took had sent it: of the change.
    std::int64_t term_ns = 0;
    std::int64_t kill_ns = 0;
    bool term_sent = false;     ///< term_ns is when it was sent.
    bool follows = false;       ///< The one whose place it took had decided SIGTERM.
    bool next_attempt = false;  ///< It has begun meanwhile.
    std::uint8_t sent = 0;      ///< By itself: kSentTerm, kSentKill.
    bool begins = true;         ///< This agent has not read yet what all had said when it began.
    std::int64_t taken_ns = 0;  ///< By this agent.
    std::set<Uuid> read;        ///< Whose words the journal has had since.
    std::map<Uuid, Process> processes;
    std::vector<std::string> failures;
  };
  /// Until when a stop sends what.
  struct Times {
    bool signalled = false;  ///< SIGTERM is decided.
    bool checkpoint = true;  ///< Checkpoints are waited for.
    std::int64_t wait_until_ns = 0;
    std::int64_t kill_by_ns = kNeverNs;  ///< SIGKILL to those that live on.
  };
  /// What there is to say of its processes (stopper.cc).
  struct Account;
  struct ToSend {
    Uuid uuid{};
    bool again = false;  ///< An agent before us was about to send it.
  };
  /// A stop that is answered.
  struct Cause {
    store::RequestId id{};
    std::string reason;  ///< JSON.
    std::uint8_t did = 0;
  };
  enum class Ended : std::uint8_t { kOtherwise, kPerhapsByIt, kByIt };
  struct Answer {
    store::RequestId request{};
    Uuid uuid{};
    StopAnswer answer = StopAnswer::kNone;
  };

  std::uint8_t Ready(const Uuid& uuid);
  StopAnswer AnswerTo(const store::RequestId& request, const Uuid& uuid) const;
  void See(const Answer& answer);
  /// What it asks for, and what the journal has of it.
  Result<Stop> Read(const store::Request& request, std::int64_t now_ns) const;
  void Begin(Stop stop, std::int64_t now_ns, Outbox* outbox,
             const store::RequestId& instead_of = {}, std::vector<format::RingPosition> marks = {});
  static std::int64_t KillBy(const Stop& stop);
  static Times TimesOf(const Stop& stop);
  /// Those of `next` where it takes the place of a stop of these.
  static Times Stricter(const Times& before, const Stop& next);
  static bool IsStricter(const Times& before, const Stop& next);
  /// The first of those that wait takes the place of the one that is carried out.
  void TakePlace(std::int64_t now_ns, Outbox* outbox);
  static std::string ReasonOf(const Stop& stop);
  /// Bits of Did of the stop that is carried out.
  std::uint8_t WhatItDid() const;
  /// Whether what a stop did ended a training that ended so.
  static Ended EndedBy(std::uint8_t did, const ProcessExit& exit);
  void SetCause(Cause cause, PendingEvent* event);
  StopAnswer Answered(const store::RequestId& request, const Uuid& uuid) const;
  void Forget(const store::RequestId& request);
  Process& Load(const Uuid& uuid);
  void Refresh(const std::vector<Target>& targets, std::int64_t now_ns);
  /// Whether something that one of them has said may be unread, and would still matter.
  bool WaitsToRead(const std::vector<Target>& targets, std::int64_t now_ns);
  bool Waits(std::int64_t now_ns);
  bool OnlyTrials() const;
  /// Whether the stop leaves it alone: it has ended, or goes on.
  bool Spared(const Process& process, bool only_trials) const;
  /// Says that `signal` is about to be sent to those that have not had it; it is once that is
  /// journalled.
  void Decide(int signal, std::int64_t now_ns, Outbox* outbox);
  /// Sends it and says what became of it.
  void Send(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);
  Delivery SendOne(const Target* target, std::string* why) const;
  /// What is due of the stop, where nothing waits for the journal.
  void Advance(std::int64_t now_ns, Outbox* outbox);
  Account MakeAccount() const;
  void Finish(std::int64_t now_ns, Outbox* outbox);

  const PositionOf position_of_;
  const Signal signal_;
  std::optional<Stop> stop_;
  std::deque<Stop> stricter_;           ///< Than stop_ and each one before: they take its place.
  std::map<Uuid, std::uint8_t> ready_;  ///< Bits of StopReady, by process.
  std::vector<Answer> early_;           ///< To requests that have not been seen here yet.
  std::set<store::RequestId> answered_;
  // From processes, with the batch that is being written.
  std::map<Uuid, std::uint8_t> offered_ready_;
  std::vector<Answer> offered_;
  // Once the journal says so, and since when that is waited for.
  std::vector<ToSend> to_send_;
  int sending_ = 0;
  std::uint64_t round_ = 0;
  std::int64_t decided_ns_ = 0;
  // Of the requests that are answered, the newest that may end the training, and its number.
  Cause cause_;
  std::uint64_t cause_number_ = 0;
};

}  // namespace telltale::agent
