// SPDX-License-Identifier: Apache-2.0
#include "agent/own_cpu.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "collect/text.h"

namespace telltale::agent {
namespace {

/// Below it, of one core at most, a process of ours runs instead of the training, not beside it.
constexpr double kIdleCores = 0.5;

/// As the probe names its thread, and /proc ends the line.
constexpr std::string_view kHelperName = "telltale-stats\n";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

/// Fields 14 and 15 of a stat file of /proc, with 16 and 17 where `reaped`; 0 where there is none.
std::uint64_t TimeOf(const std::string& path, bool reaped) {
  const std::string text = ReadAll(path);
  const auto end = text.rfind(')');  // The name before it may hold anything.
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  std::uint64_t ticks[4] = {};
  for (std::uint64_t& value : ticks) fields >> value;
  const std::uint64_t sum = ticks[0] + ticks[1] + (reaped ? ticks[2] + ticks[3] : 0);
  return sum * (1'000'000'000ULL / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)));
}

/// Calls `visit` with the path of each thread of the process.
template <class Visit>
void ForEachThread(pid_t pid, Visit visit) {
  std::error_code error;
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", pid);
  for (std::filesystem::directory_iterator at(tasks, error), end; !error && at != end;
       at.increment(error)) {
    visit(at->path().string());
  }
}

/// Of all beneath the process, but for `except` and what is beneath these.
std::uint64_t OfDescendants(pid_t pid, std::span<const pid_t> except) {
  std::uint64_t sum = 0;
  ForEachThread(pid, [&](const std::string& thread) {
    std::istringstream children(ReadAll(thread + "/children"));
    for (pid_t child = 0; children >> child;) {
      if (std::find(except.begin(), except.end(), child) != except.end()) continue;
      sum += TimeOf(fmt::format("/proc/{}/stat", child), true) + OfDescendants(child, except);
    }
  });
  return sum;
}

bool IsAllowed(std::string_view subject, const std::vector<bool>& allowed) {
  constexpr std::string_view kCore = "cpu:";
  if (!subject.starts_with(kCore)) return false;
  const auto number = collect::ParseNumber<std::size_t>(subject.substr(kCore.size()));
  return number && (allowed.empty() || (*number < allowed.size() && allowed[*number]));
}

std::uint64_t OfThisProcess() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) {
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(t.tv_usec) * 1000U;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

}  // namespace

std::uint64_t OwnCpuNs(pid_t supervisor, pid_t training) {
  const pid_t except[] = {::getpid(), training};
  std::uint64_t sum = OfThisProcess();
  // A new parent means that the supervisor is gone: its pid may be another's by now.
  if (::getppid() != supervisor) return sum;
  return sum + TimeOf(fmt::format("/proc/{}/stat", supervisor), false) +
         OfDescendants(supervisor, except);
}

std::uint64_t HelperThreadsNs(const std::vector<pid_t>& producers) {
  std::uint64_t sum = 0;
  for (const pid_t pid : producers) {
    ForEachThread(pid, [&](const std::string& thread) {
      if (ReadAll(thread + "/comm") == kHelperName) sum += TimeOf(thread + "/stat", false);
    });
  }
  return sum;
}

std::vector<bool> AllowedCores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<bool> allowed(CPU_SETSIZE);
  for (std::size_t core = 0; core < allowed.size(); ++core) allowed[core] = CPU_ISSET(core, &set);
  return allowed;
}

void OwnCpu::See(std::span<const format::MetricRow> sample, const std::vector<bool>& allowed) {
  double idle = 0;
  double cores = 0;
  std::optional<double> limit;
  std::optional<double> used;
  for (const format::MetricRow& row : sample) {
    if (row.name == "cgroup.cpu_limit") {
      limit = row.value;
    } else if (row.name == "cgroup.cpu_used") {
      used = row.value / 100;
    } else if (row.name == "cpu.idle" && IsAllowed(row.subject, allowed)) {
      idle += row.value / 100;
      ++cores;
    }
  }
  if (cores == 0) return;
  if (limit && used) {
    idle = std::clamp(*limit - *used, 0.0, idle);
    cores = std::min(cores, *limit);
  }
  idle_ += idle;
  cores_ += cores;
  ++samples_;
}

std::optional<double> OwnCpu::Share(std::uint64_t cpu_ns, std::int64_t now_ns) {
  const bool first = since_ns_ == 0;
  const std::int64_t wall_ns = now_ns - since_ns_;
  // A helper that was started again begins at 0.
  const std::uint64_t spent_ns = cpu_ns > cpu_ns_ ? cpu_ns - cpu_ns_ : 0;
  const double samples = std::exchange(samples_, 0);
  const double idle = std::exchange(idle_, 0) / std::max(samples, 1.0);
  const double cores = std::exchange(cores_, 0) / std::max(samples, 1.0);
  cpu_ns_ = cpu_ns;
  since_ns_ = now_ns;
  wall_ns_ = wall_ns;
  if (first || wall_ns <= 0) return {};
  if (samples == 0 || idle >= kIdleCores * std::min(cores, 1.0)) return 0.0;
  return static_cast<double>(spent_ns) / (static_cast<double>(wall_ns) * cores);
}

}  // namespace telltale::agent
