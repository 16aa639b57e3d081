// SPDX-License-Identifier: Apache-2.0
#include "collect/file_systems.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "collect/mounts.h"

namespace telltale::collect {
namespace {

constexpr std::int64_t kAskPeriodNs = 10'000'000'000;
constexpr std::int64_t kSilentNs = 5'000'000'000;
// Each costs a thread.
constexpr std::size_t kMaxFileSystems = 32;

std::optional<FileSystemRoom> AskKernel(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  const auto unit = static_cast<double>(info.f_frsize);
  const auto free = static_cast<double>(info.f_bfree);
  const double used = static_cast<double>(info.f_blocks) - free;
  const auto available = static_cast<double>(info.f_bavail);
  FileSystemRoom room;
  room.size_bytes = static_cast<double>(info.f_blocks) * unit;
  room.available_bytes = available * unit;
  room.used_percent = used + available > 0 ? 100 * used / (used + available) : 100;
  if (info.f_files > 0) {
    const auto files = static_cast<double>(info.f_files);
    room.inodes_used_percent = 100 * (files - static_cast<double>(info.f_ffree)) / files;
  }
  return room;
}

/// Types that hold no data of anybody's, or the kernel's own.
bool HoldsData(const MountEntry& mount) {
  constexpr std::array<std::string_view, 31> kNone = {"autofs",       "binfmt_misc",
                                                      "bpf",          "cgroup",
                                                      "cgroup2",      "configfs",
                                                      "debugfs",      "devpts",
                                                      "devtmpfs",     "efivarfs",
                                                      "fuse.lxcfs",   "fuse.portal",
                                                      "fusectl",      "fuse.gvfsd-fuse",
                                                      "hugetlbfs",    "iso9660",
                                                      "mqueue",       "nfsd",
                                                      "nsfs",         "proc",
                                                      "pstore",       "ramfs",
                                                      "resctrl",      "rootfs",
                                                      "rpc_pipefs",   "securityfs",
                                                      "selinuxfs",    "squashfs",
                                                      "sysfs",        "tracefs",
                                                      "fuse.snapfuse"};
  if (mount.type == "tmpfs") return mount.point == "/dev/shm" || mount.point == "/tmp";
  return std::find(kNone.begin(), kNone.end(), mount.type) == kNone.end();
}

/// One mount of each file system: of those that can be seen the one nearest to the root.
std::vector<MountEntry> OnePerDevice(std::vector<MountEntry> mounts) {
  std::map<std::string, MountEntry> by_point;  // The last one on a point hides the others.
  for (MountEntry& mount : mounts) {
    std::string point = mount.point;
    by_point.insert_or_assign(std::move(point), std::move(mount));
  }
  std::map<std::string, MountEntry> by_device;
  for (auto& [point, mount] : by_point) {
    if (!HoldsData(mount)) continue;
    const auto [at, added] = by_device.try_emplace(mount.device, mount);
    if (!added && mount.point.size() < at->second.point.size()) at->second = mount;
  }
  std::vector<MountEntry> out;
  for (auto& [device, mount] : by_device) out.push_back(std::move(mount));
  return out;
}

}  // namespace

FileSystemSource::FileSystemSource(SourceContext* context) : FileSystemSource(context, AskKernel) {}

FileSystemSource::FileSystemSource(SourceContext* context, Question question)
    : context_(context),
      question_(std::move(question)),
      mountinfo_(context->root + "proc/self/mountinfo") {}

void FileSystemSource::FindMounts() {
  const Reading reading = ReadFile(&mountinfo_, context_);
  if (!reading.ok) return;
  for (auto& [key, watched] : watched_) watched.mounted = false;
  context_->counters.mounts_skipped = 0;
  for (const MountEntry& mount : OnePerDevice(ParseMountinfo(reading.text))) {
    const std::string key = mount.device + " " + mount.point;
    if (const auto known = watched_.find(key); known != watched_.end()) {
      known->second.mounted = true;
      continue;
    }
    if (watched_.size() >= kMaxFileSystems) {
      ++context_->counters.mounts_skipped;
      continue;
    }
    Watched watched;
    watched.path = context_->root + mount.point.substr(1);
    watched.subject = "fs:" + mount.point;
    watched.answer = std::make_shared<Answer>();
    watched.thread =
        std::make_unique<AskedThread>([question = question_, answer = watched.answer,
                                       path = watched.path] { answer->room = question(path); });
    watched_.emplace(key, std::move(watched));
  }
  // One that hangs keeps its thread until it answers.
  std::erase_if(watched_, [](const auto& entry) {
    return !entry.second.mounted && entry.second.thread->idle();
  });
}

void FileSystemSource::Ask() {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  if (now_ns < due_ns_) return;
  due_ns_ = now_ns + kAskPeriodNs;
  FindMounts();
  for (auto& [key, watched] : watched_) {
    if (watched.open || !watched.thread->Ask()) continue;
    watched.open = true;
    watched.late = false;
    watched.asked_ns = now_ns;
  }
}

void FileSystemSource::Say(const Watched& watched, std::int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - watched.asked_ns) * 1e-9;
  const std::string path = watched.subject.substr(3);
  const nlohmann::ordered_json data = {{"path", path}, {"seconds", seconds}};
  context_->events.push_back(
      watched.silent
          ? NewEvent("filesystem.silent", "medium", watched.subject, now_ns,
                     fmt::format("{} has not answered for {:.0f} s", path, seconds), data)
          : NewEvent("filesystem.answers", "info", watched.subject, now_ns,
                     fmt::format("{} answers again after {:.0f} s", path, seconds), data));
}

void FileSystemSource::Tell(Watched* watched, RowSink* sink) {
  if (!watched->answer->room) return;
  const FileSystemRoom& room = *watched->answer->room;
  const std::string_view subject = sink->Intern(watched->subject);
  sink->Emit(MetricId::kFsSize, subject, room.size_bytes);
  sink->Emit(MetricId::kFsAvailable, subject, room.available_bytes);
  sink->Emit(MetricId::kFsUsed, subject, room.used_percent);
  if (room.inodes_used_percent) {
    sink->Emit(MetricId::kFsInodesUsed, subject, *room.inodes_used_percent);
  }
}

void FileSystemSource::Sample(RowSink* sink) {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(context_->patience_ns);
  for (auto& [key, watched] : watched_) {
    if (!watched.open) continue;
    const bool answered = watched.late
                              ? watched.thread->idle()
                              : watched.thread->Await(deadline - std::chrono::steady_clock::now());
    if (answered) {
      watched.open = false;
      if (std::exchange(watched.silent, false)) Say(watched, now_ns);
      Tell(&watched, sink);
      continue;
    }
    if (!std::exchange(watched.late, true)) ++context_->counters.unanswered;
    if (now_ns - watched.asked_ns < kSilentNs) continue;
    sink->Emit(MetricId::kFsSilent, sink->Intern(watched.subject),
               static_cast<double>(now_ns - watched.asked_ns) * 1e-9);
    if (!std::exchange(watched.silent, true)) Say(watched, now_ns);
  }
}

}  // namespace telltale::collect
