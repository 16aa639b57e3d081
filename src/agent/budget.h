// SPDX-License-Identifier: Apache-2.0
// Holds what the probe costs the training to the budget, by the steps that the journal has taken: a
// batch that it refuses is drained again, and its steps count once all the same.
// Thread safety: none; the agent's thread.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "agent/outbox.h"
#include "format/batch.h"
#include "plan/governor.h"

namespace telltale::agent {

class Budget {
 public:
  /// `share` is a fraction of step time; `interval_steps` the plan's, 0 for no statistics.
  Budget(double share, std::uint32_t interval_steps)
      : share_(share), governor_(share, interval_steps) {}

  /// Steps of the batch that the journal is given next.
  void Offer(const std::vector<format::StepRow>& steps);
  /// The journal has what was offered; what that decides is said in `outbox`.
  void Commit(std::int64_t now_ns, Outbox* outbox);
  /// It has nothing of it.
  void Rollback() { offered_.clear(); }

  /// Steps between statistics, as last decided; 0: none.
  std::uint32_t interval_steps() const { return governor_.interval(); }

 private:
  const double share_;
  plan::Governor governor_;
  std::vector<std::pair<std::int64_t, std::int64_t>> offered_;  ///< Duration, of it the probe; ns.
};

}  // namespace telltale::agent
