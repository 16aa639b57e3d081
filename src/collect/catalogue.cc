// SPDX-License-Identifier: Apache-2.0
#include "collect/catalogue.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace telltale::collect {
namespace {

using enum MetricId;
using enum MetricKind;

constexpr std::string_view kCores = "cpu:N, node";
constexpr std::string_view kStat = "/proc/stat";
constexpr std::string_view kMeminfo = "/proc/meminfo";
constexpr std::string_view kDiskstats = "/proc/diskstats";
constexpr std::string_view kNetDev = "/proc/net/dev";
constexpr std::string_view kProcess = "proc:PID, proc:tree";
constexpr std::string_view kVmstat = "/proc/vmstat";
constexpr std::string_view kPidStat = "/proc/PID/stat";
constexpr std::string_view kPidIo = "/proc/PID/io";
constexpr std::string_view kPidStatus = "/proc/PID/status";

constexpr auto kCatalogue = std::to_array<MetricDesc>({
    {kCpuUser, "cpu.user", "percent", kRate, kCores, kStat,
     "Time in user mode, niced and guest time included. Of one core; for node, of all cores."},
    {kCpuSystem, "cpu.system", "percent", kRate, kCores, kStat,
     "Time in the kernel, interrupts included."},
    {kCpuIowait, "cpu.iowait", "percent", kRate, kCores, kStat,
     "Idle time while a task of this core waited for a disk."},
    {kCpuSteal, "cpu.steal", "percent", kRate, kCores, kStat,
     "Time in which the hypervisor ran somebody else."},
    {kCpuIdle, "cpu.idle", "percent", kRate, kCores, kStat, "Idle time without such a wait."},
    {kCpuBusy, "cpu.busy", "percent", kRate, kCores, kStat,
     "All that is neither idle nor waiting for a disk: user, system and steal."},
    {kCpuFrequency, "cpu.frequency", "MHz", kGauge, "cpu:N", "cpufreq, else /proc/cpuinfo",
     "Clock of the core, every 5 s: on some kernels to ask for it wakes every core. In a virtual "
     "machine mostly a constant."},
    {kMemTotal, "mem.total", "bytes", kGauge, "node", kMeminfo, "Memory that the kernel manages."},
    {kMemAvailable, "mem.available", "bytes", kGauge, "node", kMeminfo,
     "What new work can have without swapping, by the kernel's estimate."},
    {kMemUsed, "mem.used", "bytes", kGauge, "node", kMeminfo, "Total less available."},
    {kMemCached, "mem.cached", "bytes", kGauge, "node", kMeminfo,
     "Page cache and buffers; most of it is free for who asks."},
    {kMemMajorFaults, "mem.major_faults_rate", "1/s", kRate, "node", kVmstat,
     "Page faults that had to wait for a disk."},
    {kSwapTotal, "swap.total", "bytes", kGauge, "node", kMeminfo, "Swap space."},
    {kSwapUsed, "swap.used", "bytes", kGauge, "node", kMeminfo, "Swap total less swap free."},
    {kSwapIn, "swap.in_bytes_rate", "bytes/s", kRate, "node", kVmstat,
     "Bytes brought back from swap. More than a trickle means that memory is short now."},
    {kSwapOut, "swap.out_bytes_rate", "bytes/s", kRate, "node", kVmstat, "Bytes moved to swap."},
    {kDiskReadBytes, "disk.read_bytes_rate", "bytes/s", kRate, "disk:NAME", kDiskstats,
     "Bytes read. Whole devices only, no partitions, loop, RAM or optical devices."},
    {kDiskWriteBytes, "disk.write_bytes_rate", "bytes/s", kRate, "disk:NAME", kDiskstats,
     "Bytes written."},
    {kDiskReadOps, "disk.read_ops_rate", "1/s", kRate, "disk:NAME", kDiskstats, "Reads completed."},
    {kDiskWriteOps, "disk.write_ops_rate", "1/s", kRate, "disk:NAME", kDiskstats,
     "Writes completed."},
    {kDiskBusy, "disk.busy", "percent", kRate, "disk:NAME", kDiskstats,
     "Time in which the device had at least one request; a device that serves many at once can "
     "take more at 100."},
    {kNetRecvBytes, "net.recv_bytes_rate", "bytes/s", kRate, "net:NAME", kNetDev,
     "Bytes received. Interfaces that never carried a byte are left out."},
    {kNetSendBytes, "net.send_bytes_rate", "bytes/s", kRate, "net:NAME", kNetDev, "Bytes sent."},
    {kNetRecvPackets, "net.recv_packets_rate", "1/s", kRate, "net:NAME", kNetDev,
     "Packets received."},
    {kNetSendPackets, "net.send_packets_rate", "1/s", kRate, "net:NAME", kNetDev, "Packets sent."},
    {kNetErrors, "net.errors_rate", "1/s", kRate, "net:NAME", kNetDev,
     "Packets with errors, both directions together."},
    {kNetDrops, "net.drops_rate", "1/s", kRate, "net:NAME", kNetDev,
     "Packets dropped, for want of buffers most often, both directions together."},
    {kPsiCpuSome, "psi.cpu.some10", "percent", kGauge, "psi", "/proc/pressure/cpu",
     "Share of the last 10 s in which at least one task waited for a core."},
    {kPsiIoSome, "psi.io.some10", "percent", kGauge, "psi", "/proc/pressure/io",
     "Share of the last 10 s in which at least one task waited for I/O."},
    {kPsiIoFull, "psi.io.full10", "percent", kGauge, "psi", "/proc/pressure/io",
     "Share of the last 10 s in which all tasks that were not idle waited for I/O."},
    {kPsiMemorySome, "psi.memory.some10", "percent", kGauge, "psi", "/proc/pressure/memory",
     "Share of the last 10 s in which at least one task waited for memory."},
    {kPsiMemoryFull, "psi.memory.full10", "percent", kGauge, "psi", "/proc/pressure/memory",
     "Share of the last 10 s in which all tasks that were not idle waited for memory."},
    {kCgroupCpuLimit, "cgroup.cpu_limit", "cores", kGauge, "cgroup",
     "v2 cpu.max · v1 cpu.cfs_quota_us",
     "Cores that the control group may use, the tightest of "
     "its own and its parents' limits; left out where there is none."},
    {kCgroupCpuUsed, "cgroup.cpu_used", "percent", kRate, "cgroup",
     "v2 cpu.stat · v1 cpuacct.usage", "CPU time of the group; 100 is one core."},
    {kCgroupCpuThrottledPeriods, "cgroup.cpu_throttled_periods", "percent", kRate, "cgroup",
     "cpu.stat",
     "Share of the scheduler's periods (100 ms mostly) in which the group used up its "
     "limit and was held back. Of the group whose limit is the tightest."},
    {kCgroupCpuThrottled, "cgroup.cpu_throttled", "percent", kRate, "cgroup", "cpu.stat",
     "Time held back by the limit, summed over cores; 100 is one core's."},
    {kCgroupMemLimit, "cgroup.mem_limit", "bytes", kGauge, "cgroup",
     "v2 memory.max · v1 memory.limit_in_bytes",
     "Memory that the group may use, the tightest of "
     "its own and its parents' limits; left out where there is none. Beyond it the kernel kills."},
    {kCgroupMemUsed, "cgroup.mem_used", "bytes", kGauge, "cgroup",
     "v2 memory.current · v1 memory.usage_in_bytes",
     "Memory charged to the group that has that "
     "limit, page cache included."},
    {kCgroupMemLimitHits, "cgroup.mem_limit_hits_rate", "1/s", kRate, "cgroup",
     "v2 memory.events · v1 memory.failcnt",
     "How often the group came up against its limit (v2: "
     "memory.high too) and had to give memory back first."},
    {kCgroupOomKills, "cgroup.oom_kills", "1", kGauge, "cgroup",
     "v2 memory.events · v1 memory.oom_control",
     "Processes of the group that the kernel has "
     "killed for want of memory since the group was made."},
    {kCgroupTasksLimit, "cgroup.tasks_limit", "1", kGauge, "cgroup", "pids.max",
     "Processes and threads that the group may have; left out where there is no limit."},
    {kCgroupTasks, "cgroup.tasks", "1", kGauge, "cgroup", "pids.current",
     "Processes and threads of the group."},
    {kProcCpu, "proc.cpu", "percent", kRate, kProcess, kPidStat,
     "CPU time, user and system; 100 is one core. The kernel counts in ticks of 10 ms."},
    {kProcCpuUser, "proc.cpu_user", "percent", kRate, kProcess, kPidStat, "The part in user mode."},
    {kProcCpuSystem, "proc.cpu_system", "percent", kRate, kProcess, kPidStat,
     "The part in the kernel."},
    {kProcRss, "proc.rss", "bytes", kGauge, kProcess, kPidStat,
     "Resident memory. The sum over a tree counts shared pages once a process."},
    {kProcSwap, "proc.swap", "bytes", kGauge, kProcess, kPidStatus, "Memory that lies in swap."},
    {kProcMajorFaults, "proc.major_faults_rate", "1/s", kRate, kProcess, kPidStat,
     "Page faults that had to wait for a disk."},
    {kProcReadBytes, "proc.read_bytes_rate", "bytes/s", kRate, kProcess, kPidIo,
     "Bytes that had to be fetched from storage; reads from the page cache are not among them."},
    {kProcWriteBytes, "proc.write_bytes_rate", "bytes/s", kRate, kProcess, kPidIo,
     "Bytes handed to the page cache for storage."},
    {kProcReadCalls, "proc.read_calls_rate", "1/s", kRate, kProcess, kPidIo,
     "System calls that read: files, pipes, sockets."},
    {kProcWriteCalls, "proc.write_calls_rate", "1/s", kRate, kProcess, kPidIo,
     "System calls that write."},
    {kProcReadCallBytes, "proc.read_call_bytes_rate", "bytes/s", kRate, kProcess, kPidIo,
     "Bytes that those calls read, the page cache included; mapped files are not among them."},
    {kProcWriteCallBytes, "proc.write_call_bytes_rate", "bytes/s", kRate, kProcess, kPidIo,
     "Bytes that those calls wrote."},
    {kProcThreads, "proc.threads", "1", kGauge, kProcess, kPidStat, "Threads."},
    {kProcVoluntarySwitches, "proc.voluntary_switches_rate", "1/s", kRate, kProcess, kPidStatus,
     "Times that the main thread gave up its core to wait for something. The kernel counts by "
     "thread: the main one is the one that trains, or loads."},
    {kProcInvoluntarySwitches, "proc.involuntary_switches_rate", "1/s", kRate, kProcess, kPidStatus,
     "Times that the main thread was taken off its core although it had work: more wants to run "
     "than there are cores."},
});

constexpr bool IdsAreIndices() {
  for (std::size_t i = 0; i < kCatalogue.size(); ++i) {
    if (static_cast<std::size_t>(kCatalogue[i].id) != i) return false;
  }
  return true;
}
static_assert(IdsAreIndices(), "Describe() indexes by id");
static_assert(kCatalogue.back().id == kProcInvoluntarySwitches, "every id has its line");

}  // namespace

std::span<const MetricDesc> Catalogue() { return kCatalogue; }

const MetricDesc& Describe(MetricId id) { return kCatalogue[static_cast<std::size_t>(id)]; }

std::string CataloguePage() {
  std::string page =
      "# Metrics\n\n"
      "<!-- Generated from src/collect/catalogue.cc by `metrics_page --write`; ctest compares. "
      "-->\n\n"
      "What the agent samples, every 500 ms unless `telltale run --interval` says otherwise, into "
      "the\n"
      "table `metrics` ([records](formats/records.md)). A *gauge* is the value at the moment of "
      "reading.\n"
      "A *rate* is the difference of a counter over the time since the sample before, by the "
      "monotonic\n"
      "clock; so it begins with the second sample, is left out where a counter was reset, and is "
      "right\n"
      "where a 32-bit counter wrapped. A source that cannot be read leaves its metrics out and is "
      "counted.\n\n"
      "The training's process tree is the command and all its descendants: one subject a process "
      "and\n"
      "`proc:tree` for their sum. New processes are looked for once a second. Which of them are "
      "data\n"
      "loader workers says the event `process.start` with the same pid.\n\n"
      "The control group is that of the command, version 1 or 2; limits are looked up every 10 "
      "s.\n\n"
      "| Name | Unit | Kind | Subject | Source | Meaning |\n|---|---|---|---|---|---|\n";
  for (const MetricDesc& m : kCatalogue) {
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", m.name, m.unit,
                        m.kind == kRate ? "rate" : "gauge", m.subject, m.source, m.doc);
  }
  return page;
}

}  // namespace telltale::collect
