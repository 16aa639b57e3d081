// SPDX-License-Identifier: Apache-2.0
#include "agent/quiet.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.h"

namespace telltale::agent {
namespace {

constexpr std::size_t kMaxThreads = 32;
/// A process may have thousands: no more are listed.
constexpr std::size_t kMaxListed = 4096;

struct CallName {
  long number;
  std::string_view name;
};
/// In which a thread that goes on no more is mostly found. Numbers differ by machine, and some of
/// the calls are missing on newer ones.
constexpr CallName kCallNames[] = {
    {SYS_futex, "futex"},
    {SYS_ppoll, "ppoll"},
    {SYS_pselect6, "pselect6"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_readv, "readv"},
    {SYS_writev, "writev"},
    {SYS_pread64, "pread64"},
    {SYS_pwrite64, "pwrite64"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_accept, "accept"},
    {SYS_accept4, "accept4"},
    {SYS_connect, "connect"},
    {SYS_wait4, "wait4"},
    {SYS_waitid, "waitid"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "clock_nanosleep"},
    {SYS_flock, "flock"},
    {SYS_fsync, "fsync"},
    {SYS_openat, "openat"},
    {SYS_ioctl, "ioctl"},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait"},
#ifdef SYS_poll
    {SYS_poll, "poll"},
#endif
#ifdef SYS_select
    {SYS_select, "select"},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait"},
#endif
#ifdef SYS_open
    {SYS_open, "open"},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause"},
#endif
};

/// At most 4 KiB, without the line's end.
std::string ReadLine(const std::string& path) {
  std::ifstream in(path);
  std::string text(4096, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

/// The name of the system call of a syscall file ("202 0x7f.. .."); empty where it is in none, or
/// the file may not be read.
std::string CallOf(const std::string& text) {
  long number = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || number < 0 || (at != end && *at != ' ')) return {};
  for (const CallName& call : kCallNames) {
    if (call.number == number) return std::string(call.name);
  }
  return std::to_string(number);
}

nlohmann::ordered_json ThreadOf(const std::string& task, std::int32_t tid) {
  nlohmann::ordered_json thread;
  const std::string stat = ReadLine(task + "/stat");
  const auto bracket = stat.rfind(')');  // The name before it may hold anything.
  if (bracket == std::string::npos) return thread;
  std::istringstream fields(stat.substr(bracket + 1));
  std::string state;
  fields >> state;
  std::string skipped;
  for (int field = 4; field < 14; ++field) fields >> skipped;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  fields >> user >> system;
  const auto ticks = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  thread["tid"] = tid;
  thread["name"] = ReadLine(task + "/comm");
  thread["state"] = state;
  thread["cpu_ms"] = (user + system) * 1000 / ticks;
  const std::string wait = ReadLine(task + "/wchan");
  if (!wait.empty() && wait != "0") thread["wait"] = wait;
  const std::string call = CallOf(ReadLine(task + "/syscall"));
  if (!call.empty()) thread["syscall"] = call;
  return thread;
}

}  // namespace

void QuietWatch::See(std::int64_t now_ns) {
  if (last_ns_ != 0) longest_ns_ = std::max(longest_ns_, now_ns - last_ns_);
  last_ns_ = now_ns;
  due_ns_ = std::clamp(longest_ns_ > kMostNs ? kMostNs : 4 * longest_ns_, kLeastNs, kMostNs);
}

bool QuietWatch::Due(std::int64_t now_ns) {
  if (last_ns_ == 0 || now_ns - last_ns_ < due_ns_) return false;
  due_ns_ = 2 * (now_ns - last_ns_);
  return true;
}

std::string ThreadsOf(const std::string& proc, std::int32_t pid, std::int64_t quiet_ns) {
  const std::string tasks = proc + "/" + std::to_string(pid) + "/task";
  std::vector<std::int32_t> tids;
  std::error_code error;
  for (std::filesystem::directory_iterator at(tasks, error), end;
       !error && at != end && tids.size() < kMaxListed; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::int32_t tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    if (tid > 0) tids.push_back(tid);
  }
  std::sort(tids.begin(), tids.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(a != pid, a) < std::pair(b != pid, b);
  });
  nlohmann::ordered_json threads = nlohmann::ordered_json::array();
  for (const std::int32_t tid : tids) {
    if (threads.size() >= kMaxThreads) break;
    nlohmann::ordered_json thread = ThreadOf(tasks + "/" + std::to_string(tid), tid);
    if (!thread.is_null()) threads.push_back(std::move(thread));
  }
  if (threads.empty()) return {};
  const nlohmann::ordered_json data = {
      {"quiet_ns", quiet_ns}, {"thread_count", tids.size()}, {"threads", threads}};
  return JsonText(data);
}

}  // namespace telltale::agent
