// SPDX-License-Identifier: Apache-2.0
#include "collect/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "collect/kept_file.h"
#include "collect/mounts.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

std::string ReadOnce(const std::string& path) {
  std::string buffer;
  bool failed = false;
  KeptFile file(path);
  const auto text = file.Read(0, &buffer, &failed);
  return text ? std::string(*text) : std::string();
}

bool ListHas(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

struct Mount {
  int version = 0;
  std::string root;   ///< The folder of the hierarchy that is mounted there.
  std::string point;  ///< Without '/' at its end.
  std::string options;
};

std::vector<Mount> FindMounts(const std::string& root) {
  std::vector<Mount> mounts;
  for (MountEntry& entry : ParseMountinfo(ReadOnce(root + "proc/self/mountinfo"))) {
    const int version = entry.type == "cgroup" ? 1 : entry.type == "cgroup2" ? 2 : 0;
    if (version == 0) continue;
    mounts.push_back(
        {version, std::move(entry.root), root + entry.point.substr(1), std::move(entry.options)});
  }
  return mounts;
}

CgroupController Locate(const Mount& mount, std::string_view path) {
  CgroupController found{mount.version, {}};
  // In a container the mount's root may be a folder of the host's hierarchy, and the path told may
  // or may not begin with it.
  if (mount.root != "/") {
    if (path == mount.root || path.starts_with(mount.root + "/")) {
      path.remove_prefix(mount.root.size());
    } else {
      path = {};
    }
  }
  if (path.find("/..") != std::string_view::npos) path = {};  // Outside of what can be seen.
  while (path.ends_with('/')) path.remove_suffix(1);
  std::string folder = mount.point + std::string(path);
  if (::access(folder.c_str(), F_OK) != 0) folder = mount.point;
  for (;;) {
    found.folders.push_back(folder);
    if (folder.size() <= mount.point.size()) break;
    folder.resize(folder.rfind('/'));
  }
  return found;
}

/// The least of what `read` gives for a folder and its parents.
template <class Read>
std::optional<CgroupLimit> Least(const CgroupController& controller, Read read) {
  std::optional<CgroupLimit> least;
  for (const std::string& folder : controller.folders) {
    const std::optional<double> value = read(folder);
    if (value && (!least || *value < least->value)) least = CgroupLimit{*value, folder};
  }
  return least;
}

template <class T>
std::optional<T> NumberIn(const std::string& path) {
  const std::string text = ReadOnce(path);
  std::string_view rest = text, line;
  NextLine(&rest, &line);
  return ParseNumber<T>(NextField(&line));
}

}  // namespace

CgroupPlaces FindCgroups(const std::string& root, std::string_view process) {
  CgroupPlaces places;
  const std::string text = ReadOnce(root + "proc/" + std::string(process) + "/cgroup");
  if (text.empty()) return places;
  const std::vector<Mount> mounts = FindMounts(root);
  const std::pair<std::string_view, CgroupController*> wanted[] = {{"cpu", &places.cpu},
                                                                   {"cpuacct", &places.cpuacct},
                                                                   {"memory", &places.memory},
                                                                   {"pids", &places.pids}};
  std::optional<std::string_view> unified;
  std::string_view rest = text, line;
  while (NextLine(&rest, &line)) {
    // Number, controllers, path; the path may hold colons itself.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view list = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (list.empty()) unified = path;
    for (const auto& [name, controller] : wanted) {
      if (!ListHas(list, name)) continue;
      const auto mount = std::find_if(mounts.begin(), mounts.end(), [name = name](const Mount& m) {
        return m.version == 1 && ListHas(m.options, name);
      });
      if (mount != mounts.end()) *controller = Locate(*mount, path);
    }
  }
  const auto mount =
      std::find_if(mounts.begin(), mounts.end(), [](const Mount& m) { return m.version == 2; });
  if (unified && mount != mounts.end()) {
    const CgroupController found = Locate(*mount, *unified);
    // Beside a version 1 hierarchy it holds the controllers that the other has not.
    std::string held;
    for (const std::string& folder : found.folders) {
      held += " " + ReadOnce(folder + "/cgroup.controllers");
    }
    const auto holds = [&](std::string_view name) {
      std::string_view list_rest = held, list_line;
      while (NextLine(&list_rest, &list_line)) {
        for (auto word = NextField(&list_line); !word.empty(); word = NextField(&list_line)) {
          if (word == name) return true;
        }
      }
      return false;
    };
    for (const auto& [name, controller] : wanted) {
      const std::string_view held_as = name == "cpuacct" ? "cpu" : name;
      if (controller->version == 0 && holds(held_as)) *controller = found;
    }
  }
  return places;
}

std::optional<CgroupLimit> CpuLimit(const CgroupController& cpu) {
  return Least(cpu, [&](const std::string& folder) -> std::optional<double> {
    std::optional<double> quota, period;
    if (cpu.version == 2) {
      const std::string text = ReadOnce(folder + "/cpu.max");  // "max 100000" is none.
      std::string_view rest = text, line;
      NextLine(&rest, &line);
      quota = ParseNumber<double>(NextField(&line));
      period = ParseNumber<double>(NextField(&line));
    } else {
      quota = NumberIn<double>(folder + "/cpu.cfs_quota_us");  // -1 is none.
      period = NumberIn<double>(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return *quota / *period;
  });
}

std::optional<CgroupLimit> MemoryLimit(const CgroupController& memory) {
  return Least(memory, [&](const std::string& folder) -> std::optional<double> {
    const auto bytes = NumberIn<std::uint64_t>(
        folder + (memory.version == 2 ? "/memory.max" : "/memory.limit_in_bytes"));
    // Version 1 writes "none" as the greatest number of whole pages.
    constexpr std::uint64_t kNone = 1ULL << 60;
    if (!bytes || *bytes >= kNone) return std::nullopt;
    return static_cast<double>(*bytes);
  });
}

std::optional<CgroupLimit> TasksLimit(const CgroupController& pids) {
  return Least(pids, [&](const std::string& folder) -> std::optional<double> {
    return NumberIn<double>(folder + "/pids.max");
  });
}

}  // namespace telltale::collect
