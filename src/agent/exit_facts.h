// SPDX-License-Identifier: Apache-2.0
// What tells why a process was killed, read at the moment when its end is seen: how many processes
// the kernel's out-of-memory killer has ended, how full /dev/shm is. Later it is gone.
//
// Thread safety: none; the agent's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/process.h"

namespace telltale::agent {

class ExitFacts {
 public:
  /// Processes of the training's control group that the out-of-memory killer has ended so far;
  /// none where the kernel does not count them.
  using GroupKills = std::function<std::optional<std::uint64_t>()>;

  /// `root` ends in '/'; below it lie proc/ and dev/.
  ExitFacts(std::string root, GroupKills group_kills)
      : root_(std::move(root)), group_kills_(std::move(group_kills)) {}

  /// The attempt begins: what was killed before it does not count.
  void Begin();
  /// Adds what there is to say of such an end: of SIGKILL `oom_kills` and `host_oom_kills`, of
  /// SIGBUS `shm_size` and `shm_used`.
  void AddTo(const ProcessExit& exit, nlohmann::ordered_json* data) const;

 private:
  std::optional<std::uint64_t> HostKills() const;

  std::string root_;
  GroupKills group_kills_;
  std::optional<std::uint64_t> group_before_, host_before_;
};

}  // namespace telltale::agent
