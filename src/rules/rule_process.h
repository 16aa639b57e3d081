// SPDX-License-Identifier: Apache-2.0
// A child that a rule of the user's runs in: lines to it and from it, each wait with an end. Where
// it is let go it has kPatienceNs to end itself and what it has started (the keeper in
// python/telltale/rule_host.py does), then it is killed with all of its group.
//
// Thread safety: none. Memory: one line of the child's.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::rules {

class RuleProcess {
 public:
  /// The longest line that is read.
  static constexpr std::size_t kMostLineBytes = 1U << 20U;
  /// The descriptor on which the child finds its end of the line.
  static constexpr int kChildFd = 3;
  static constexpr std::int64_t kPatienceNs = 5'000'000'000;

  /// `command`: program (looked up in PATH) and arguments. `environment`: NAME=value. `log`: file
  /// to which what the child prints is appended; empty: nowhere.
  static Result<std::unique_ptr<RuleProcess>> Start(const std::vector<std::string>& command,
                                                    const std::vector<std::string>& environment,
                                                    const std::string& log);
  ~RuleProcess();
  RuleProcess(const RuleProcess&) = delete;
  RuleProcess& operator=(const RuleProcess&) = delete;

  /// kLimit: the child did not take it in time; kUnusable: it has ended.
  Status SendLine(std::string_view line, std::int64_t timeout_ns);
  /// Without its line break. kLimit: none came in time, or it is too long; kUnusable: the child has
  /// ended.
  Result<std::string> ReadLine(std::int64_t timeout_ns);

 private:
  RuleProcess(pid_t pid, UniqueFd pidfd, UniqueFd line)
      : pid_(pid), pidfd_(std::move(pidfd)), line_(std::move(line)) {}

  /// Waits until `events` are there. kLimit: not before the deadline.
  Status WaitFor(short events, std::int64_t deadline_ns);
  /// "it was killed by signal 9", "it ended with exit code 1".
  Status Ended();
  /// Until it has ended, at most so long.
  void AwaitEnd(std::int64_t timeout_ns) const;

  const pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd line_;
  std::string read_;  ///< Read and not given yet.
};

}  // namespace telltale::rules
