// SPDX-License-Identifier: Apache-2.0
// Starts children: the training, which must find everything as if Telltale were not there, and our
// own helpers, which must outlive the terminal and die before the training when memory runs out.
#pragma once
#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::run {

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;  ///< Of a helper always; of the training not where pidfd_open failed.
  /// Of the training: not 0: it ended at once since the program could not be executed.
  int exec_errno = 0;
};

/// How we were given the signals, and the size of a core, that we treat otherwise: the training
/// gets them so.
struct GivenSignals {
  sigset_t mask{};                   ///< Of blocked ones.
  bool children_ignored = false;     ///< SIGCHLD was.
  bool large_files_ignored = false;  ///< SIGXFSZ was.
  std::optional<rlimit> core;
};
/// Blocks SIGPIPE, ignores SIGXFSZ (a file of ours that grows past a limit is an error to handle,
/// not our end), and ends that SIGCHLD is ignored: else the kernel reaps our children, and how they
/// ended is never known. A crash of ours leaves no core (LeaveNoCore), but the limit can be raised
/// again.
GivenSignals TakeSignals();

/// Starts the training in our process group with our standard streams, `environment`, the signals
/// `given` and the limit of open files `files`: those that we were given, as are the dispositions
/// of all other signals, which we never change.
Result<Child> SpawnTraining(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment, const GivenSignals& given,
                            const rlimit& files);

/// A variable for helpers of ours, of which no training hears (rules/actions/action_consent.h).
inline constexpr const char* kActionsAgreed = "TELLTALE_ACTIONS_AGREED";

/// Takes our place with `command`, under the signals `given`: nothing of us is left, nor
/// kActionsAgreed in the environment. Returns only where it cannot be executed: errno.
int BecomeTraining(const std::vector<std::string>& command, const GivenSignals& given);

/// Starts one of our helpers: session of its own, stdin /dev/null, stdout and stderr appended to
/// `log`, oom_score_adj above the training's, no signal blocked or ignored but SIGXFSZ, no core
/// when it crashes. `inherited` (or -1) is the one descriptor it gets, under number kInheritedFd.
/// One that cannot be watched does not run. Waits for no disk: that the log is opened and the
/// program executed is the child's, which ends with 126 where it cannot be.
inline constexpr int kInheritedFd = 3;
Result<Child> SpawnHelper(const std::vector<std::string>& command, const std::filesystem::path& log,
                          int inherited);

}  // namespace telltale::run
