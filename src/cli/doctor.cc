// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/unique_fd.h"
#include "channel/ticks.h"
#include "collect/cgroup.h"
#include "collect/gpu_inventory.h"
#include "collect/text.h"
#include "stacks/py_spy.h"

namespace telltale::cli {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

std::string Bytes(double bytes) {
  return bytes >= kGiB ? fmt::format("{:.1f} GiB", bytes / kGiB)
                       : fmt::format("{:.0f} MiB", bytes / kMiB);
}

std::optional<std::string> Line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in.is_open() || !std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<long> NumberIn(const std::string& path) {
  const auto line = Line(path);
  return line ? collect::ParseNumber<long>(*line) : std::nullopt;
}

/// The value behind "key" in a file of lines "key number kB".
std::optional<double> KibibytesOf(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    if (collect::NextField(&rest) != key) continue;
    const auto value = collect::ParseNumber<double>(collect::NextField(&rest));
    return value ? std::optional(*value * 1024) : std::nullopt;
  }
  return std::nullopt;
}

/// Whether a pidfd tells how a process ended to who is not its parent; tried on a child that has
/// been reaped, of which the parent knows no more than others.
bool KernelTellsExits() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(7);
  if (child < 0) return false;
  const UniqueFd fd = OpenPidfd(child);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const auto exit = fd ? PidfdExit(fd.get()) : std::nullopt;
  return exit && exit->exit_code == 7;
}

Check Pidfd() {
  Check check{"pidfd", Finding::kOk, {}, {}};
  const UniqueFd fd = OpenPidfd(::getpid());
  if (!fd) {
    check.finding = Finding::kStops;
    check.found = fmt::format("pidfd_open: {}", std::strerror(errno));
    check.effect =
        "`telltale run` refuses: it could not tell for sure when a process ends; needs "
        "Linux 5.3";
    return check;
  }
  const bool tells = KernelTellsExits();
  utsname name{};
  ::uname(&name);
  check.found = fmt::format("works (Linux {}); exit codes of others: {}", name.release,
                            tells ? "told" : "not told");
  check.effect = "the end of each process is seen at once";
  check.effect += tells ? "; how a run ended is known even where the supervisor was killed (from "
                          "Linux 6.15)"
                        : "; a run whose supervisor was killed ends as `lost`, since Linux before "
                          "6.15 does not tell how";
  return check;
}

Check MemfdSealing() {
  Check check{"memfd sealing", Finding::kOk, "works",
              "each process hands its records over in sealed memory that cannot shrink under the "
              "agent, and that outlives the process"};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd fd(::memfd_create("telltale-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), 4096) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0 ||
      (::fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    check.finding = Finding::kStops;
    check.found = std::strerror(errno);
    check.effect = "nothing is recorded from inside the training; the machine's metrics still are";
  }
  return check;
}

Check Clock(const std::string& root) {
  const bool tsc = channel::DetectClock() == format::ClockKind::kTsc;
  const auto source =
      Line(root + "sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (tsc) {
    return {"clock", Finding::kOk, "TSC, invariant and trusted by the kernel",
            "a time stamp costs a few nanoseconds"};
  }
  return {
      "clock", Finding::kLimited,
      fmt::format("no TSC to trust; the kernel uses {}", source.value_or("its own")),
      "clock_gettime is used: as exact, and some tens of nanoseconds a record dearer where it is "
      "a system call"};
}

Check Perf(const std::string& root) {
  perf_event_attr attr{};
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_INSTRUCTIONS;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.disabled = 1;
  const UniqueFd fd(
      static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  const int error = errno;
  const auto level = NumberIn(root + "proc/sys/kernel/perf_event_paranoid");
  const std::string paranoid =
      level ? fmt::format("perf_event_paranoid {}", *level) : "no perf in this kernel";
  const std::string effect = "nothing: this version does not read hardware counters";
  if (fd) return {"perf", Finding::kOk, "hardware counters, " + paranoid, effect};
  return {"perf", Finding::kMissing,
          fmt::format("no hardware counters ({}), {}", std::strerror(error), paranoid), effect};
}

Check PtraceScope(const std::string& root) {
  const auto scope = NumberIn(root + "proc/sys/kernel/yama/ptrace_scope");
  const std::string ours =
      "nothing: Telltale's hooks run inside the training; for `run --stacks` see stacks";
  if (!scope || *scope == 0) {
    return {"ptrace scope", Finding::kOk, scope ? "0, open" : "no Yama", ours};
  }
  constexpr std::array<std::string_view, 4> kMeaning = {"open", "parents only",
                                                        "administrators only", "nobody"};
  const auto meaning = *scope > 0 && *scope < 4 ? kMeaning[static_cast<std::size_t>(*scope)] : "?";
  return {"ptrace scope", Finding::kLimited, fmt::format("{}, {}", *scope, meaning),
          ours + "; debuggers and stack samplers that attach from outside are kept out"};
}

/// Of `run --stacks`.
Check Stacks(const std::string& root) {
  const std::filesystem::path program = stacks::FindPySpy("python3");
  const auto scope = NumberIn(root + "proc/sys/kernel/yama/ptrace_scope").value_or(0);
  std::string why = stacks::WhyNotReadable();
  if (why.empty() && scope >= 2 && ::geteuid() != 0) {
    why = fmt::format("kernel.yama.ptrace_scope is {}", scope);
  }
  if (!why.empty()) {
    return {"stacks", Finding::kLimited, fmt::format("other processes may not be read: {}", why),
            "`telltale run --stacks` samples nothing, and says so; a container needs "
            "CAP_SYS_PTRACE"};
  }
  if (program.empty()) {
    return {"stacks", Finding::kMissing,
            "no py-spy beside python3, in VIRTUAL_ENV or PATH: pip install py-spy",
            "`telltale run --stacks` samples nothing, and says so, unless there is one beside the "
            "training's own Python"};
  }
  return {"stacks", Finding::kOk, program.string(),
          scope == 1 ? "`telltale run --stacks` samples Python stacks: each Python process of the "
                       "training allows it"
                     : "`telltale run --stacks` samples Python stacks"};
}

Check Cgroup(const std::string& root) {
  const collect::CgroupPlaces places = collect::FindCgroups(root, "self");
  Check check{"cgroup", Finding::kOk, {}, {}};
  if (places.version() == 0) {
    check.finding = Finding::kMissing;
    check.found = "no control group to be seen";
    check.effect = "limits of a container are not known: there are no metrics cgroup.*";
    return check;
  }
  const auto cpu = collect::CpuLimit(places.cpu);
  const auto memory = collect::MemoryLimit(places.memory);
  const auto tasks = collect::TasksLimit(places.pids);
  check.found = fmt::format("version {}; limits: {}, {}, {}", places.version(),
                            cpu ? fmt::format("{:g} cores", cpu->value) : "cores none",
                            memory ? "memory " + Bytes(memory->value) : "memory none",
                            tasks ? fmt::format("tasks {:.0f}", tasks->value) : "tasks none");
  check.effect = "use, limits and times held back are sampled as cgroup.*";
  if (cpu && cpu->value < static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN))) {
    check.finding = Finding::kLimited;
    check.effect += fmt::format(
        "; {:g} of {} cores may be used: frameworks that start a thread a "
        "core are held back",
        cpu->value, ::sysconf(_SC_NPROCESSORS_ONLN));
  }
  return check;
}

std::size_t CountGpus(const std::string& root) {
  std::size_t count = 0;
  DIR* dir = ::opendir((root + "dev").c_str());
  if (dir == nullptr) return 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with("nvidia") && collect::ParseNumber<int>(name.substr(6))) ++count;
  }
  ::closedir(dir);
  return count;
}

/// "8 × NVIDIA H100 80GB HBM3, 80 GiB each".
std::string GpusInWords(const collect::GpuInventory& found) {
  std::map<std::string, int> kinds;
  for (const collect::GpuInventory::Gpu& gpu : found.gpus) {
    ++kinds[gpu.name.empty() ? "without an answer"
                             : fmt::format("{}, {}", gpu.name, Bytes(gpu.memory_bytes))];
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : kinds) parts.push_back(fmt::format("{} × {}", count, kind));
  return fmt::format("{}", fmt::join(parts, "; "));
}

Check GpuLibrary(const DoctorOptions& options) {
  const std::size_t nodes = CountGpus(options.root);
  constexpr std::chrono::seconds kPatience{20};
  const collect::GpuInventory found = collect::FindGpus(options.nvml, kPatience);
  Check check{"GPU library", Finding::kOk, {}, {}};
  if (!found.problem.empty() || found.gpus.empty()) {
    check.finding = nodes > 0 ? Finding::kLimited : Finding::kMissing;
    check.found = fmt::format("{}; NVIDIA devices: {}",
                              found.problem.empty() ? "no device" : found.problem, nodes);
    check.effect = "there are no metrics gpu.*";
    if (nodes > 0) {
      check.effect +=
          "; in a container the driver's library comes with the capability \"utility\" "
          "(NVIDIA_DRIVER_CAPABILITIES)";
    }
    return check;
  }
  check.found = fmt::format("driver {}: {}", found.driver, GpusInWords(found));
  check.effect =
      "utilization, memory, power, clocks, temperature, errors and more are sampled as "
      "gpu.*";
  const auto count = [&](auto of) {
    return std::count_if(found.gpus.begin(), found.gpus.end(), of);
  };
  const auto counters = count([](const auto& gpu) { return gpu.counters && !gpu.mig; });
  const auto partitioned = count([](const auto& gpu) { return gpu.mig; });
  const auto silent = count([](const auto& gpu) { return gpu.name.empty(); });
  check.effect +=
      counters > 0 ? "; tensor cores too" : "; not tensor cores, which Hopper tells first";
  if (partitioned > 0) {
    check.finding = Finding::kLimited;
    check.effect += fmt::format("; {} partitioned (MIG): of these the driver tells no utilization",
                                partitioned);
  }
  if (silent > 0) check.finding = Finding::kLimited;
  return check;
}

Check Memory(const std::string& root) {
  const auto available = KibibytesOf(root + "proc/meminfo", "MemAvailable:");
  const auto limit = collect::MemoryLimit(collect::FindCgroups(root, "self").memory);
  rlimit address{};
  const bool has_address_limit =
      ::getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY;
  Check check{"memory limit", Finding::kOk, {}, {}};
  check.found = available ? Bytes(*available) + " available" : "what is available is not told";
  double room = available.value_or(1e18);
  if (limit) {
    check.found += ", control group " + Bytes(limit->value);
    room = std::min(room, limit->value);
  }
  if (has_address_limit) {
    check.found += ", addresses " + Bytes(static_cast<double>(address.rlim_cur));
    room = std::min(room, static_cast<double>(address.rlim_cur));
  }
  check.effect =
      "the trainer takes 16 MiB more for its records, each loader worker 1 MiB, at their start";
  // Agent, watcher and a few workers with full arenas.
  constexpr double kTightBytes = 512 * kMiB;
  if (room < kTightBytes) {
    check.finding = Finding::kLimited;
    check.effect += "; little is left: a process that cannot have it goes on and is not recorded";
  }
  return check;
}

Check OpenFiles() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  // Of the agent, which has the most: of up to 192 processes that are sampled and 256 that are
  // recorded, and its own.
  constexpr rlim_t kSampled = 5;
  constexpr rlim_t kRecorded = 2;
  constexpr rlim_t kOwn = 128;
  constexpr rlim_t kEnough = 192 * kSampled + 256 * kRecorded + kOwn;
  const std::string hard =
      files.rlim_max == RLIM_INFINITY ? "unlimited" : fmt::format("{}", files.rlim_max);
  if (files.rlim_max >= kEnough) {
    return {"open files", Finding::kOk,
            fmt::format("{}, may be raised to {}", files.rlim_cur, hard),
            fmt::format("up to {} a process that is sampled, {} one that is recorded; Telltale "
                        "raises its own limit, never the training's",
                        kSampled, kRecorded)};
  }
  const rlim_t processes =
      files.rlim_max > kOwn ? (files.rlim_max - kOwn) / (kSampled + kRecorded) : 0;
  return {"open files", Finding::kLimited, fmt::format("at most {}", hard),
          fmt::format("enough for some {} processes; of more, some are not recorded, which is "
                      "counted; `ulimit -Hn 4096` helps",
                      processes)};
}

Check Procfs(const std::string& root) {
  const std::string self = root + "proc/self/";
  std::vector<std::string> lacks;
  if (::access((root + "proc/stat").c_str(), R_OK) != 0) lacks.emplace_back("/proc/stat");
  if (!Line(self + "io")) lacks.emplace_back("/proc/PID/io");
  if (!Line(root + "proc/pressure/cpu")) lacks.emplace_back("/proc/pressure");
  if (::access((root + "proc/diskstats").c_str(), R_OK) != 0) lacks.emplace_back("/proc/diskstats");
  if (lacks.empty()) {
    return {"/proc", Finding::kOk, "all sources can be read", "every metric of docs/metrics.md"};
  }
  return {"/proc", Finding::kLimited, fmt::format("cannot read {}", fmt::join(lacks, ", ")),
          "their metrics are left out; the rest is sampled"};
}

Check SocketFolder() {
  const char* tmp = ::getenv("TMPDIR");
  std::string folder = tmp != nullptr && tmp[0] == '/' && std::strlen(tmp) < 64 ? tmp : "/tmp";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) {
    return {"socket folder", Finding::kOk, folder,
            "processes of the training find the agent there"};
  }
  return {"socket folder", Finding::kStops, fmt::format("{}: {}", folder, std::strerror(errno)),
          "`telltale run` refuses: set TMPDIR to a folder that can be written"};
}

/// File systems on which a write waits for a network.
std::string_view NetworkName(long type) {
  switch (static_cast<unsigned long>(type)) {
    case 0x6969:
      return "NFS";
    case 0xFF534D42:
      return "CIFS";
    case 0xFE534D42:
      return "SMB";
    case 0x65735546:
      return "FUSE";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x00C36400:
      return "Ceph";
    case 0x01021997:
      return "9p";
    case 0x19830326:
      return "BeeGFS";
    default:
      return {};
  }
}

/// Nanoseconds that it takes until 4 KiB are on the disk; none where that does not work, with why.
std::optional<std::int64_t> SyncTime(const std::string& folder, int* error) {
  // Without a name where the file system can do that; else removed at once.
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!fd) {
    std::string name = folder + "/.telltale-doctor-XXXXXX";
    fd.reset(::mkostemp(name.data(), O_CLOEXEC));
    *error = errno;
    if (!fd) return std::nullopt;
    ::unlink(name.c_str());
  }
  const std::array<char, 4096> block{};
  const std::int64_t before = channel::MonotonicNs();
  const bool written =
      ::write(fd.get(), block.data(), block.size()) == static_cast<ssize_t>(block.size()) &&
      ::fdatasync(fd.get()) == 0;
  *error = errno;
  return written ? std::optional(channel::MonotonicNs() - before) : std::nullopt;
}

Check Disk(const std::string& folder) {
  Check check{"disk", Finding::kOk, {}, {}};
  int error = 0;
  const auto sync_ns = SyncTime(folder, &error);
  struct statfs info {};
  if (!sync_ns || ::statfs(folder.c_str(), &info) != 0) {
    check.finding = Finding::kStops;
    check.found = fmt::format("{}: {}", folder, std::strerror(sync_ns ? errno : error));
    check.effect = "`telltale run` cannot write here: give another folder with -o";
    return check;
  }
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_bsize);
  const std::string_view network = NetworkName(info.f_type);
  check.found =
      fmt::format("{}: {} free, 4 KiB are safe after {:.1f} ms{}{}", folder, Bytes(free),
                  static_cast<double>(*sync_ns) * 1e-6, network.empty() ? "" : ", ", network);
  check.effect = "records are on disk within a second";
  constexpr double kTightBytes = 1 * kGiB;
  constexpr std::int64_t kSlowNs = 500'000'000;
  if (free < kTightBytes) {
    check.finding = Finding::kLimited;
    check.effect +=
        "; when it is full, records wait in memory, then are dropped and counted, and "
        "the training goes on";
  }
  if (!network.empty() || *sync_ns > kSlowNs) {
    check.finding = Finding::kLimited;
    check.effect +=
        "; a slow or distant disk delays findings and never the training: -o on a local "
        "one is better";
  }
  return check;
}

}  // namespace

std::string_view Name(Finding finding) {
  switch (finding) {
    case Finding::kOk:
      return "ok";
    case Finding::kLimited:
      return "limited";
    case Finding::kMissing:
      return "missing";
    case Finding::kStops:
      return "stops";
  }
  return "";
}

std::vector<Check> Examine(const DoctorOptions& options) {
  return {Pidfd(),
          MemfdSealing(),
          SocketFolder(),
          Disk(options.folder),
          Clock(options.root),
          Procfs(options.root),
          Cgroup(options.root),
          Memory(options.root),
          OpenFiles(),
          GpuLibrary(options),
          Perf(options.root),
          PtraceScope(options.root),
          Stacks(options.root)};
}

}  // namespace telltale::cli
