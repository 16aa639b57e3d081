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

/// User and system time so far of the supervisor and of its children except the training, ours
/// included; what these children have waited for counts too. Where /proc does not tell: of this
/// process.
std::uint64_t OwnCpuNs(pid_t supervisor, pid_t training);

/// The same of the probe's helper threads, which make histograms, in these processes.
std::uint64_t HelperThreadsNs(const std::vector<pid_t>& producers);

class OwnCpu {
 public:
  /// Takes the node's idle share out of a sample of the machine.
  void See(std::span<const format::MetricRow> sample);
  /// The share of step time that `cpu_ns` more since the last call come to, over `cores`: all of it
  /// where hardly a core was idle, else 0. None at the first call.
  std::optional<double> Share(std::uint64_t cpu_ns, std::int64_t now_ns, unsigned cores);

 private:
  double idle_sum_ = 0;  ///< Percent of all cores.
  std::uint64_t idle_count_ = 0;
  std::uint64_t cpu_ns_ = 0;
  std::int64_t since_ns_ = 0;
};

}  // namespace telltale::agent
