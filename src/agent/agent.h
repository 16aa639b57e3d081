// SPDX-License-Identifier: Apache-2.0
// The agent: takes records out of every producer's arena, samples the machine, writes the journal.
// One thread; the store syncs and seals on threads of its own. Ends when the supervisor says so, or
// when the supervisor is gone and the training with all its producers has ended.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "agent/look_back.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "plan/capture_plan.h"

namespace telltale::agent {

struct AgentOptions {
  std::filesystem::path run;     ///< The run directory.
  UniqueFd link;                 ///< To the supervisor (channel/registration.h).
  std::filesystem::path socket;  ///< The supervisor's, alone in its folder; may be empty.
  /// The supervisor, our parent while it lives. 0: who is our parent now.
  pid_t supervisor = 0;
  std::int64_t interval_ms = 500;  ///< Between samples of the machine.
  std::string system_root;  ///< Below it lie the proc/ and sys/ that are sampled; empty: the root.
  plan::CapturePlan plan = plan::DefaultPlan();
  std::uint32_t attempt = 0;  ///< Requests of earlier ones are not for this agent; 0: not known.
  std::int64_t attempt_start_ns = 0;  ///< Unix time; tells it of requests that name no attempt.
  double overhead_budget = 0.01;      ///< Part of step time that the probe may cost.
  std::uint64_t look_back_bytes = kLookBackBytes;  ///< Of memory for spans of detail; 0: none.
  /// Not 0: a predecessor died; what was not sampled since this CLOCK_MONOTONIC time is a gap.
  std::int64_t gap_from_monotonic_ns = 0;
};

/// Runs until the end. kRunning: another agent has the folder; kIo: the store cannot be opened.
Status RunAgent(AgentOptions options);

}  // namespace telltale::agent
