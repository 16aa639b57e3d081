// SPDX-License-Identifier: Apache-2.0
// One registered process as the agent sees it: its rings, its control page, its life.
// Thread safety: none; the agent's thread.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/exit_facts.h"
#include "agent/outbox.h"
#include "agent/quiet.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "channel/consumer.h"
#include "channel/control_page.h"
#include "channel/slab.h"
#include "format/records.gen.h"
#include "plan/compiler.h"

namespace telltale::agent {

using Uuid = std::array<std::uint8_t, 16>;
std::string Hex(const Uuid& uuid);

class Producer {
 public:
  /// Attaches to the arena and the control page; the plan is published next.
  static Result<std::unique_ptr<Producer>> Adopt(const Uuid& uuid, UniqueFd arena, UniqueFd control,
                                                 UniqueFd pidfd);

  const Uuid& uuid() const { return uuid_; }
  channel::Consumer& consumer() { return *consumer_; }
  int pidfd() const { return pidfd_.get(); }
  /// Whether the answers to names are of this plan, or of one before.
  enum class Names { kKept, kAgain };
  /// Writes the rules, thinned as they are, and with kAgain every name's answer, so that the probe
  /// sees all of it at once.
  void Publish(const plan::Compiled& compiled, std::uint64_t slab_bytes, Names names);
  /// Publishes the windows of detail, where they have changed.
  void PublishWindows(std::string_view text) { control_->SetWindows(text); }
  /// How many spans of detail a second it may record, or each of them.
  void SetDetail(std::uint32_t spans_per_second, bool all) {
    control_->SetDetail(spans_per_second, all);
  }
  /// The names whose answers the plan owes; cheap where none is new. True where one was.
  bool AnswerNames(const plan::Compiled& compiled);
  /// Records of its steps: lists of steps that are longer than a rule follow them. In a mode
  /// without steps, of a program that numbers its own, what the plan has taken says how far it is.
  void See(const format::Rows& rows, const std::vector<channel::DrainedTensor>& tensors = {});
  /// Publishes the next part of such lists where steps have passed since.
  bool Slide(const plan::Compiled& compiled, std::uint64_t slab_bytes);

  /// Maps the slab in which its tensors' values come.
  void AttachSlab(UniqueFd slab);
  /// What each drain gave of tensors; `all`: the rings hold nothing more. Then those slots are
  /// freed that a dead agent had taken and no record named: the journal has their records, so
  /// their values are stored or counted as lost.
  void SeeTensors(const std::vector<channel::DrainedTensor>& tensors, bool all);
  /// Null where there is none. Whoever else holds it has not written its values yet.
  const std::shared_ptr<channel::SlabReader>& slab() const { return slab_; }

  /// True once the process has ended; asks the pidfd until then.
  bool PollEnded();
  bool ended() const { return ended_; }
  /// How it ended; the kernel knows once the parent has reaped it.
  std::optional<ProcessExit> Exit() const { return PidfdExit(pidfd_.get()); }

  PendingEvent StartEvent(std::int64_t monotonic_to_run_ns, std::int64_t now_ns);
  /// `ended_ns`: run clock, when the end was seen.
  PendingEvent ExitEvent(const std::optional<ProcessExit>& exit, std::int64_t ended_ns,
                         std::int64_t now_ns, const ExitFacts& facts);
  /// The event "probe.disabled", once, when the probe has switched itself off.
  std::optional<PendingEvent> DisabledEvent(std::int64_t now_ns);
  /// The event "producer.left", once: it lives on when the recording ends.
  std::optional<PendingEvent> LeftEvent(std::int64_t now_ns);
  /// Records were drained: it is alive. `now_ns`: CLOCK_MONOTONIC.
  void NoteRecords(std::int64_t now_ns) { quiet_.See(now_ns); }
  /// The event "process.stacks" of a training process of which nothing has come for long, with what
  /// its threads wait for. `now_ns`: CLOCK_MONOTONIC.
  std::optional<PendingEvent> StacksEvent(std::int64_t now_ns, std::int64_t run_now_ns);
  void CountInto(Ledger* ledger);

  /// What a predecessor of this agent has said already.
  void SkipMarks(bool start, bool exit, bool disabled, bool left);

  bool start_said = false;
  bool exit_said = false;
  bool drained = false;          ///< The rings were empty at the last look.
  std::int64_t ended_at_ns = 0;  ///< CLOCK_MONOTONIC when the end was seen.

 private:
  Producer() = default;
  /// Of what the plan has taken: the steps before it are over.
  void Begin(std::string_view mode, std::int64_t step);
  /// An event of this process, with the mark that keeps it from being said twice.
  PendingEvent NewEvent(std::string kind, std::uint16_t mark_ring, std::uint64_t mark,
                        std::int64_t now_ns);

  Uuid uuid_{};
  std::unique_ptr<channel::Consumer> consumer_;
  std::optional<channel::ControlPage> control_;
  std::shared_ptr<channel::SlabReader> slab_;
  std::vector<bool> inherited_;  ///< Slots that a dead agent had taken; empty once that is settled.
  UniqueFd pidfd_;
  bool ended_ = false;
  bool disabled_said_ = false;
  bool left_said_ = false;
  QuietWatch quiet_;
  std::uint32_t answered_ = 0;                   ///< Names up to this one have their answer.
  std::array<bool, 4> has_steps_{};              ///< By mode.
  plan::PassedSteps passed_{-1, -1, -1, -1};     ///< Newest step of each mode that is over.
  plan::PassedSteps published_{-1, -1, -1, -1};  ///< As the rules were last written with.
  std::string subject_;                          ///< proc:PID:UUID, of its ledger rows.
};

}  // namespace telltale::agent
