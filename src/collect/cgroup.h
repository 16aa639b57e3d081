// SPDX-License-Identifier: Apache-2.0
// Where the control group of a process lies and what it may use. Knows version 1, version 2 and
// both beside each other, seen from the host or from within a container.
// Thread-safe: all functions are stateless.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::collect {

/// One controller of one process.
struct CgroupController {
  int version = 0;  ///< 1 or 2; 0 where no such hierarchy is mounted.
  /// The process's own folder first, then its parents up to the outermost that can be seen.
  std::vector<std::string> folders;
};

struct CgroupPlaces {
  CgroupController cpu;
  CgroupController cpuacct;  ///< The same as cpu in version 2.
  CgroupController memory;
  CgroupController pids;

  /// 1 or 2, by the controllers that limit; 0 where there are none.
  int version() const { return memory.version != 0 ? memory.version : cpu.version; }
};

/// `root` ends in '/' and holds proc/ and sys/; `process` is a pid or "self". Mounts are taken as
/// this process sees them.
CgroupPlaces FindCgroups(const std::string& root, std::string_view process);

/// A limit that binds: the tightest of the group's own and its parents', and whose it is.
struct CgroupLimit {
  double value = 0;
  std::string folder;
};
std::optional<CgroupLimit> CpuLimit(const CgroupController& cpu);        ///< In cores.
std::optional<CgroupLimit> MemoryLimit(const CgroupController& memory);  ///< In bytes.
std::optional<CgroupLimit> TasksLimit(const CgroupController& pids);

}  // namespace telltale::collect
