// SPDX-License-Identifier: Apache-2.0
// Holds what Telltale costs the training to the budget, by the steps that the journal has taken: a
// batch that it refuses is drained again, and its steps count once all the same. Says what it did.
// Thread safety: none; the agent's thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/outbox.h"
#include "format/batch.h"
#include "plan/compiler.h"
#include "plan/governor.h"

namespace telltale::agent {

/// tt_mode of a row's mode.
std::optional<unsigned> ModeOf(std::string_view mode);

class Budget {
 public:
  /// `share` is a fraction of step time.
  /// `run_begin_ns`: by the run's clock; 0: not known.
  Budget(double share, std::span<const plan::PlannedRule> rules,
         std::vector<plan::PlannedInterval> intervals = {}, std::int64_t run_begin_ns = 0)
      : share_(share),
        governor_(share, rules, run_begin_ns),
        rules_(rules.begin(), rules.end()),
        intervals_(std::move(intervals)) {}

  /// Steps of the batch that the journal is given next.
  void Offer(const std::vector<format::StepRow>& steps);
  /// The journal has what was offered; what that decides is said in `outbox`.
  void Commit(std::int64_t now_ns, Outbox* outbox);
  /// It has nothing of it.
  void Rollback() { offered_.clear(); }
  /// What Telltale's own processes take from the training, as a share of step time.
  /// For `wall_ns`.
  void OwnCost(double share, std::int64_t wall_ns, std::int64_t now_ns, Outbox* outbox);

  /// Another plan of tensors: nothing is thinned, and what it costs is learnt anew.
  void Restart(std::span<const plan::PlannedRule> rules,
               std::vector<plan::PlannedInterval> intervals) {
    governor_.SetRules(rules);
    rules_.assign(rules.begin(), rules.end());
    intervals_ = std::move(intervals);
  }
  /// The journal gets another plan, or another agent has the run: readers take what was said of
  /// thinning as over. Says what of it holds on and, where none does, that. `thinned`: a
  /// predecessor has thinned something.
  void SayAgain(std::string_view after, std::int64_t now_ns, Outbox* outbox, bool thinned = false);
  /// The rules, thinned as thinning() says, went to the producers.
  void Published(std::int64_t now_ns) { governor_.Published(now_ns); }
  const plan::Thinning& thinning() const { return governor_.thinning(); }
  /// Something is not taken any more, or nothing was left to take less often a short while ago: no
  /// time for what is not planned.
  bool Strained(std::int64_t now_ns) const {
    return governor_.thinning().shed > 0 || now_ns < strained_until_ns_;
  }
  std::uint32_t sampling_stretch() const { return governor_.sampling_stretch(); }
  const plan::Governor& governor() const { return governor_; }

 private:
  /// What the decision comes to.
  std::string Done(const plan::Governor::Decision& decision) const;
  void Say(const plan::Governor::Decision& decision, std::int64_t now_ns, Outbox* outbox);
  /// `costs`: the decision's shares are of now.
  PendingEvent EventOf(const plan::Governor::Decision& decision, std::string message, bool costs,
                       std::int64_t now_ns);

  static constexpr std::int64_t kStrainNs = 60'000'000'000;

  const double share_;
  plan::Governor governor_;
  std::vector<plan::PlannedRule> rules_;
  std::vector<plan::PlannedInterval> intervals_;
  /// The newest that was said.
  plan::Governor::Decision said_;
  std::int64_t strained_until_ns_ = 0;
  std::vector<plan::StepCost> offered_;
};

}  // namespace telltale::agent
