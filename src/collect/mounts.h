// SPDX-License-Identifier: Apache-2.0
// What is mounted, as /proc/PID/mountinfo has it (proc_pid_mountinfo(5)).
// Thread-safe: all functions are stateless.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace telltale::collect {

struct MountEntry {
  std::string device;   ///< "253:0"; the same for each mount of one file system.
  std::string root;     ///< The folder of the file system that is mounted there.
  std::string point;    ///< Absolute.
  std::string type;     ///< "ext4".
  std::string source;   ///< "/dev/vda1", "server:/data".
  std::string options;  ///< Of the file system.
};

/// In the file's order, a later one on the same point hides an earlier. Lines that are none are
/// left out.
std::vector<MountEntry> ParseMountinfo(std::string_view text);

/// The kernel writes blanks, tabs, line ends and backslashes as \ and three octal digits.
std::string UnescapedMount(std::string_view text);

}  // namespace telltale::collect
