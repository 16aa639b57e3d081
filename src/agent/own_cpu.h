// SPDX-License-Identifier: Apache-2.0
// What Telltale's own processes take from the training: their processor time, where cores are
// scarce. Thread safety: none; the agent's thread.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/records.gen.h"

namespace telltale::agent {

/// User and system time so far of the supervisor and of all beneath it except the training and what
/// that has started, ours included; what they have waited for counts too. Where /proc does not
/// tell: of this process.
std::uint64_t OwnCpuNs(pid_t supervisor, pid_t training);

/// The same of the probe's helper threads, which make histograms, in these processes.
std::uint64_t HelperThreadsNs(const std::vector<pid_t>& producers);

/// By number, the cores on which this process may run; empty: the kernel does not tell.
///
/// Whether there is room beside the training is asked of our cores, not of its own: where the run
/// is confined (taskset, a cpuset) ours are the same, and where the training alone is pinned, ours
/// find others.
std::vector<bool> AllowedCores();

class OwnCpu {
 public:
  /// Takes out of a sample of the machine what was idle of the cores in `allowed` (empty: of all),
  /// and no more than what was left of the control group's limit.
  void See(std::span<const format::MetricRow> sample, const std::vector<bool>& allowed);
  /// The share of step time that `cpu_ns` more since the last call come to, over these cores: all
  /// of it where hardly one was idle, else 0. None at the first call.
  std::optional<double> Share(std::uint64_t cpu_ns, std::int64_t now_ns);
  /// Between the last two calls.
  std::int64_t wall_ns() const { return wall_ns_; }

 private:
  // Sums over the samples since the last call.
  double idle_ = 0;  ///< Cores.
  double cores_ = 0;
  double samples_ = 0;
  std::uint64_t cpu_ns_ = 0;
  std::int64_t since_ns_ = 0;
  std::int64_t wall_ns_ = 0;
};

}  // namespace telltale::agent
