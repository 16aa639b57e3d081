// SPDX-License-Identifier: Apache-2.0
// Carries a request of kind "stop" out on the processes of this machine: lets them save a
// checkpoint where they have said that they can, sends each SIGTERM once, waits, sends SIGKILL
// where that was asked for, and gives an exact account. By pidfd alone, so that a number that the
// kernel has given to somebody else is never signalled. Each step is in the journal before it is
// taken: a new agent goes on from there and signals nobody a second time.
//
// Thread safety: none; the agent's thread.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/outbox.h"
#include "base/status.h"
#include "format/batch.h"
#include "store/requests.h"

namespace telltale::agent {

/// Of a process (under its channel's uuid) and of the training's root (under the request's id): how
/// far its stop has come.
inline constexpr std::uint16_t kStopMarkRing = 0xfff7;
enum class StopMark : std::uint8_t {
  kNone = 0,
  kReady = 1,   ///< It has said that it saves a checkpoint when it is asked to.
  kSaved = 2,   ///< It has answered the request.
  kKept = 3,    ///< It has, and goes on: only the trial in it was given up.
  kTermed = 4,  ///< SIGTERM is being sent, or was.
  kKilled = 5,
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
  /// The mark of a process or request that the journal had when this agent began.
  using MarkOf = std::function<StopMark(const Uuid&)>;
  /// pidfd_send_signal: 0 or errno.
  using Signal = std::function<int(int pidfd, int signal)>;

  explicit Stopper(MarkOf mark_of, Signal signal = {});

  /// Rows of a batch of one process that the journal is given next: marks to go with them are
  /// added. They count once the batch is taken.
  void Offer(const format::Rows& rows, const Uuid& uuid, std::vector<format::RingPosition>* marks);
  void Settle(bool taken);

  /// A request that no journal has answered. kUsage: it makes no sense; kRunning: another one is
  /// being carried out. Else it is answered in time.
  Status Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox);
  /// Goes on. `now_ns`: run clock.
  void Poll(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);
  /// Something waits for the disk to have what Poll and Take have said.
  bool pending() const { return stop_ && (!stop_->begun || !to_send_.empty()); }
  /// The disk has everything that Poll and Take have said.
  void Journalled(const std::vector<Target>& targets);

  /// The recording ends: answers what is not answered yet.
  void Close(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);

  bool active() const { return stop_.has_value(); }
  /// What to say of the training's end: {"request", "who", "why", ...} as JSON; empty where nobody
  /// has stopped it.
  const std::string& reason() const { return reason_; }

 private:
  struct Stop {
    store::RequestId id{};
    std::string who, why, rule, incident;
    bool checkpoint = true;
    bool kill = false;
    std::int64_t checkpoint_ns = 0;
    std::int64_t grace_ns = 0;
    std::int64_t begun_ns = 0;
    std::int64_t termed_ns = 0;  ///< Run clock of the first SIGTERM; 0: none yet.
    std::int64_t killed_ns = 0;
    bool begun = false;  ///< The journal has its begin.
  };
  struct Sent {
    Uuid uuid{};
    int signal = 0;
  };
  struct Answer {
    Uuid uuid{};
    StopMark mark = StopMark::kNone;
  };

  StopMark Mark(const Uuid& uuid);
  void Raise(const Uuid& uuid, StopMark mark);
  /// Under which the target's mark is kept.
  Uuid Name(const Target& target) const;
  bool Waits(const std::vector<Target>& targets, std::int64_t now_ns);
  bool OnlyTrials(const std::vector<Target>& targets);
  /// Says that `signal` is sent to those that have not had it; it is sent once that is journalled.
  void Announce(const std::vector<Target>& targets, StopMark mark, std::int64_t now_ns,
                Outbox* outbox);
  void Finish(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox);

  const MarkOf mark_of_;
  const Signal signal_;
  std::optional<Stop> stop_;
  std::map<Uuid, StopMark> marks_;
  std::set<Uuid> trials_;        ///< Those that are ready to give up a trial.
  std::vector<Answer> offered_;  ///< From processes, with the batch that is being written.
  std::vector<Sent> to_send_;    ///< Once the journal says so.
  std::vector<std::string> failures_;
  std::string reason_;
};

}  // namespace telltale::agent
