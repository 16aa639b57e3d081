// SPDX-License-Identifier: Apache-2.0
#include "agent/own_cpu.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace telltale::agent {
namespace {

/// Below it a process of ours runs instead of the training, not beside it.
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
  const pid_t self = ::getpid();
  std::uint64_t sum = OfThisProcess();
  // A new parent means that the supervisor is gone: its pid may be another's by now.
  if (::getppid() != supervisor) return sum;
  sum += TimeOf(fmt::format("/proc/{}/stat", supervisor), false);
  std::istringstream children(ReadAll(fmt::format("/proc/{0}/task/{0}/children", supervisor)));
  for (pid_t pid = 0; children >> pid;) {
    if (pid != self && pid != training) sum += TimeOf(fmt::format("/proc/{}/stat", pid), true);
  }
  return sum;
}

std::uint64_t HelperThreadsNs(const std::vector<pid_t>& producers) {
  std::uint64_t sum = 0;
  for (const pid_t pid : producers) {
    std::error_code error;
    const std::filesystem::path tasks = fmt::format("/proc/{}/task", pid);
    for (std::filesystem::directory_iterator at(tasks, error), end; !error && at != end;
         at.increment(error)) {
      const std::string task = at->path().string();
      if (ReadAll(task + "/comm") == kHelperName) sum += TimeOf(task + "/stat", false);
    }
  }
  return sum;
}

void OwnCpu::See(std::span<const format::MetricRow> sample) {
  for (const format::MetricRow& row : sample) {
    if (row.name != "cpu.idle" || row.subject != "node") continue;
    idle_sum_ += row.value;
    ++idle_count_;
  }
}

std::optional<double> OwnCpu::Share(std::uint64_t cpu_ns, std::int64_t now_ns, unsigned cores) {
  const bool first = since_ns_ == 0;
  const std::int64_t wall_ns = now_ns - since_ns_;
  // A helper that was started again begins at 0.
  const std::uint64_t spent_ns = cpu_ns > cpu_ns_ ? cpu_ns - cpu_ns_ : 0;
  const double idle_cores =
      idle_count_ == 0 ? 0 : idle_sum_ / static_cast<double>(idle_count_) / 100 * cores;
  const bool known = idle_count_ > 0;
  cpu_ns_ = cpu_ns;
  since_ns_ = now_ns;
  idle_sum_ = 0;
  idle_count_ = 0;
  if (first || wall_ns <= 0 || cores == 0) return {};
  if (!known || idle_cores >= kIdleCores) return 0.0;
  return static_cast<double>(spent_ns) / (static_cast<double>(wall_ns) * cores);
}

}  // namespace telltale::agent
