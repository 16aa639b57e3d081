// SPDX-License-Identifier: Apache-2.0
#include "agent/exit_facts.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

namespace telltale::agent {
namespace {

void AddRise(const char* key, std::optional<std::uint64_t> before, std::optional<std::uint64_t> now,
             nlohmann::ordered_json* data) {
  if (before && now) (*data)[key] = *now - std::min(*before, *now);
}

}  // namespace

std::optional<std::uint64_t> ExitFacts::HostKills() const {
  std::ifstream file(root_ + "proc/vmstat");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

void ExitFacts::Begin() {
  group_before_ = group_kills_();
  host_before_ = HostKills();
}

void ExitFacts::AddTo(const ProcessExit& exit, nlohmann::ordered_json* data) const {
  if (exit.signal == SIGKILL) {
    AddRise("oom_kills", group_before_, group_kills_(), data);
    AddRise("host_oom_kills", host_before_, HostKills(), data);
  } else if (exit.signal == SIGBUS) {
    struct statvfs room {};
    if (::statvfs((root_ + "dev/shm").c_str(), &room) != 0) return;
    const std::uint64_t size = std::uint64_t{room.f_blocks} * room.f_frsize;
    (*data)["shm_size"] = size;
    (*data)["shm_used"] =
        size - std::min(size, std::uint64_t{room.f_bfree} * std::uint64_t{room.f_frsize});
  }
}

}  // namespace telltale::agent
