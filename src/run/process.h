// SPDX-License-Identifier: Apache-2.0
// Starts children: the training, which must find everything as if Telltale were not there, and our
// own helpers, which must outlive the terminal and die before the training when memory runs out.
#pragma once
#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::run {

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;      ///< Of a helper always; of the training not where pidfd_open failed.
  int exec_errno = 0;  ///< Not 0: it ended at once since the program could not be executed.
};

/// Starts the training in our process group with our standard streams, `environment`, the signal
/// mask `mask` and the limit of open files `files`: those that we were given, as are the
/// dispositions of signals, which we never change.
Result<Child> SpawnTraining(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment, const sigset_t& mask,
                            const rlimit& files);

/// Takes our place with `command`, under the signal mask `mask`: nothing of us is left. Returns
/// only where it cannot be executed: errno.
int BecomeTraining(const std::vector<std::string>& command, const sigset_t& mask);

/// Starts one of our helpers: session of its own, stdin /dev/null, stdout and stderr appended to
/// `log`, oom_score_adj above the training's, no signal blocked or ignored. `inherited` (or -1) is
/// the one descriptor it gets, under number kInheritedFd. One that cannot be watched does not run.
inline constexpr int kInheritedFd = 3;
Result<Child> SpawnHelper(const std::vector<std::string>& command, const std::filesystem::path& log,
                          int inherited);

}  // namespace telltale::run
