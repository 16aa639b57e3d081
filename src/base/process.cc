// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace telltale {
namespace {

/// linux/pidfd.h of 6.15, with own declarations since the headers that build us may be older.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t pid, tgid, ppid;
  std::uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  std::int32_t exit_code;
};
constexpr std::uint64_t kPidfdInfoExit = 1U << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

std::string ReadSmallFile(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  text.resize(limit);
  std::size_t at = 0;
  while (at < limit) {
    const ssize_t n = ::read(fd.get(), text.data() + at, limit - at);
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
  }
  text.resize(at);
  return text;
}

/// Field `number` (from 1, as proc(5) counts) of /proc/PID/stat; the command's name may hold spaces
/// and brackets, so fields are counted behind the last bracket.
std::string StatField(std::int32_t pid, int number) {
  const std::string stat = ReadSmallFile("/proc/" + std::to_string(pid) + "/stat", 1024);
  std::size_t at = stat.rfind(')');
  if (at == std::string::npos) return {};
  at += 2;
  for (int field = 3; field < number; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return {};
    ++at;
  }
  if (at >= stat.size()) return {};
  return stat.substr(at, stat.find(' ', at) - at);
}

/// Zeros between its words, cut at 4 KiB.
std::string CommandLineOf(std::int32_t pid) {
  std::string text = ReadSmallFile("/proc/" + std::to_string(pid) + "/cmdline", 4096);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

template <class T>
T Number(const std::string& text) {
  T value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::optional<std::uint64_t> NumberIn(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

/// What follows `key` in a text of lines, up to the line's end.
std::string_view Behind(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return line.substr(key.size());
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

}  // namespace

std::uint64_t ProcessStartTicks(std::int32_t pid) {
  return Number<std::uint64_t>(StatField(pid, 22));
}

std::int32_t ProcessParent(std::int32_t pid) { return Number<std::int32_t>(StatField(pid, 4)); }

std::string ProcessCommandLine(std::int32_t pid) {
  std::string text = CommandLineOf(pid);
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::vector<std::string> ProcessArguments(std::int32_t pid) {
  std::vector<std::string> words;
  const std::string text = CommandLineOf(pid);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool ProcessAlive(std::int32_t pid, std::uint64_t start_ticks) {
  if (pid <= 0 || start_ticks == 0 || ProcessStartTicks(pid) != start_ticks) return false;
  const std::string state = StatField(pid, 3);
  return state != "Z" && state != "X";
}

UniqueFd OpenPidfd(std::int32_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool PidfdEnded(int pidfd) {
  pollfd poll_fd{pidfd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & (POLLIN | POLLHUP)) != 0;
}

std::optional<ProcessExit> PidfdExit(int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) return {};
  return FromWaitStatus(info.exit_code);
}

ProcessExit FromWaitStatus(int status) {
  ProcessExit exit;
  if (WIFEXITED(status)) exit.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  return exit;
}

void LeaveNoCore() {
  const rlimit one{1, 1};
  if (::setrlimit(RLIMIT_CORE, &one) == 0) return;
  // It was 0 already, and may not be raised.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

std::optional<std::uint64_t> MemoryLeft(const std::string& root) {
  std::optional<std::uint64_t> left;
  const std::string meminfo = ReadSmallFile(root + "proc/meminfo", 8192);
  if (const auto kib = NumberIn(Behind(meminfo, "MemAvailable:"))) left = *kib << 10;
  const std::string groups = ReadSmallFile(root + "proc/self/cgroup", 65536);
  std::string path(Behind(groups, "0::"));
  // A limit of a group is one of all groups in it.
  while (path.starts_with('/')) {
    const std::string folder = root + "sys/fs/cgroup" + path + "/memory.";
    const auto most = NumberIn(ReadSmallFile(folder + "max", 64));  // "max": none.
    const auto used = NumberIn(ReadSmallFile(folder + "current", 64));
    if (most && used) {
      const std::uint64_t of_group = *most > *used ? *most - *used : 0;
      left = std::min(left.value_or(of_group), of_group);
    }
    if (path == "/") break;
    path.resize(path.rfind('/'));
    if (path.empty()) path = "/";
  }
  return left;
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string BootId() {
  std::string id = ReadSmallFile("/proc/sys/kernel/random/boot_id", 64);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string PidNamespace() {
  const auto target = [](const char* link) {
    char text[64];
    const ssize_t n = ::readlink(link, text, sizeof text);
    return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
  };
  if (target("/proc/self") != std::to_string(::getpid())) return {};
  return target("/proc/self/ns/pid");
}

}  // namespace telltale
