// SPDX-License-Identifier: Apache-2.0
// Facts about processes that /proc and pidfds tell: who is alive, since when, how it ended.
// Thread-safe: all functions are stateless.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace telltale {

/// Field 22 of /proc/PID/stat, in clock ticks after boot; with the pid it names a process for good.
/// 0: no such process, or it may not be read.
std::uint64_t ProcessStartTicks(std::int32_t pid);
/// Parent's pid (field 4 of /proc/PID/stat), 0 where unknown.
std::int32_t ProcessParent(std::int32_t pid);
/// The command line with spaces between the words, cut at 4 KiB; empty where unknown.
std::string ProcessCommandLine(std::int32_t pid);
/// Its words, cut in the same way.
std::vector<std::string> ProcessArguments(std::int32_t pid);
/// True while the process with this pid and start time runs (a zombie does not).
bool ProcessAlive(std::int32_t pid, std::uint64_t start_ticks);

/// A pidfd, close-on-exec; invalid where there is no such process. errno says why.
UniqueFd OpenPidfd(std::int32_t pid);
/// True once the process behind the pidfd has ended. Does not wait.
bool PidfdEnded(int pidfd);

/// How a process ended.
struct ProcessExit {
  std::optional<int> exit_code;
  std::optional<int> signal;
};
/// Exit of a process that is not our child, by PIDFD_GET_INFO (Linux 6.15); none where the kernel
/// does not tell.
std::optional<ProcessExit> PidfdExit(int pidfd);
/// Splits a status of waitpid.
ProcessExit FromWaitStatus(int status);

/// From now on this process, and what it starts, leaves no core when it crashes: a core has the
/// environment in it, with its passwords, and would lie in the training's folder. The limit is one
/// byte: less than the smallest core, and the kernel then starts no program of core_pattern either,
/// which it does at 0. It cannot be raised again. Async-signal-safe.
void LeaveNoCore();

/// Bytes that this machine can still give: what is available of its memory (/proc/meminfo), and no
/// more than the control group of this process has left (version 2). None where neither is known.
/// `root` is "/", but in tests.
std::optional<std::uint64_t> MemoryLeft(const std::string& root = "/");

std::string HostName();
/// /proc/sys/kernel/random/boot_id, empty where unknown.
std::string BootId();
/// "pid:[4026531836]": the space that our pids are numbers of. Empty where /proc is of another one,
/// so that no pid can be looked up.
std::string PidNamespace();

}  // namespace telltale
