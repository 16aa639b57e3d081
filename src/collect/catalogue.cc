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
constexpr std::string_view kMounts = "fs:PATH";
constexpr std::string_view kStatvfs = "statvfs()";
constexpr std::string_view kNfsMounts = "nfs:PATH";
constexpr std::string_view kMountstats = "/proc/self/mountstats";
constexpr std::string_view kSnmp = "/proc/net/snmp";
constexpr std::string_view kGpus = "gpu:N";
constexpr std::string_view kNvml = "NVML";
constexpr std::string_view kGpm = "NVML's GPM";
constexpr std::string_view kNvmlGpm = "NVML, its GPM";

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
    {kCpuRunDelay, "cpu.run_delay", "percent", kRate, kCores, "/proc/schedstat",
     "Time that tasks stood in the core's queue, ready and not running; 100 is one task all the "
     "time. Every 5 s; left out where the kernel keeps no such file."},
    {kCpuSwitches, "cpu.switches_rate", "1/s", kRate, "node", kStat,
     "Times that a core went from one task to another."},
    {kCpuForks, "cpu.forks_rate", "1/s", kRate, "node", kStat, "Processes and threads started."},
    {kCpuRunning, "cpu.tasks_running", "1", kGauge, "node", kStat,
     "Tasks that run or could run, the agent's own included."},
    {kCpuBlocked, "cpu.tasks_blocked", "1", kGauge, "node", kStat, "Tasks that wait for a disk."},
    {kCpuFrequency, "cpu.frequency", "MHz", kGauge, "cpu:N", "cpufreq, else /proc/cpuinfo",
     "Clock of the core, every 5 s: on some kernels to ask for it wakes every core. In a virtual "
     "machine mostly a constant."},
    {kMemTotal, "mem.total", "bytes", kGauge, "node", kMeminfo, "Memory that the kernel manages."},
    {kMemAvailable, "mem.available", "bytes", kGauge, "node", kMeminfo,
     "What new work can have without swapping, by the kernel's estimate."},
    {kMemUsed, "mem.used", "bytes", kGauge, "node", kMeminfo, "Total less available."},
    {kMemCached, "mem.cached", "bytes", kGauge, "node", kMeminfo,
     "Page cache and buffers; most of it is free for who asks."},
    {kMemFaults, "mem.faults_rate", "1/s", kRate, "node", kVmstat,
     "Page faults, those that had to wait for a disk included."},
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
    {kDiskReadLatency, "disk.read_latency", "ms", kRate, "disk:NAME", kDiskstats,
     "Mean time of the reads that ended since the sample before, their wait in the queue included; "
     "left out where none did."},
    {kDiskWriteLatency, "disk.write_latency", "ms", kRate, "disk:NAME", kDiskstats,
     "The same of writes."},
    {kDiskQueue, "disk.queue", "1", kRate, "disk:NAME", kDiskstats,
     "Requests that waited or were served, on average over the interval."},
    {kFsSize, "fs.size", "bytes", kGauge, kMounts, kStatvfs,
     "Size of the file system, every 10 s. Those that hold data: of a disk, of a network, FUSE, "
     "overlays, /dev/shm and /tmp; at most 32, each once however often it is mounted."},
    {kFsAvailable, "fs.available", "bytes", kGauge, kMounts, kStatvfs,
     "What a program without privileges can still write."},
    {kFsUsed, "fs.used", "percent", kGauge, kMounts, kStatvfs,
     "Share of what such a program could ever write that is taken."},
    {kFsInodesUsed, "fs.inodes_used", "percent", kGauge, kMounts, kStatvfs,
     "Share of the files that it may hold; left out where there is no such limit."},
    {kFsSilent, "fs.silent", "s", kGauge, kMounts, kStatvfs,
     "Time for which the file system has not answered: a dead server, say. Only while it lasts; a "
     "thread of its own asks each, so nothing else waits."},
    {kNfsReadBytes, "nfs.read_bytes_rate", "bytes/s", kRate, kNfsMounts, kMountstats,
     "Bytes that came from the server, every second."},
    {kNfsWriteBytes, "nfs.write_bytes_rate", "bytes/s", kRate, kNfsMounts, kMountstats,
     "Bytes that went to it."},
    {kNfsReadOps, "nfs.read_ops_rate", "1/s", kRate, kNfsMounts, kMountstats, "READ calls."},
    {kNfsWriteOps, "nfs.write_ops_rate", "1/s", kRate, kNfsMounts, kMountstats, "WRITE calls."},
    {kNfsOtherOps, "nfs.other_ops_rate", "1/s", kRate, kNfsMounts, kMountstats,
     "All other calls: opening files and listing folders, mostly."},
    {kNfsReadLatency, "nfs.read_latency", "ms", kRate, kNfsMounts, kMountstats,
     "Mean time of the READ calls that ended since the sample before, their wait here included; "
     "left out where none did."},
    {kNfsWriteLatency, "nfs.write_latency", "ms", kRate, kNfsMounts, kMountstats,
     "The same of WRITE calls."},
    {kNfsOtherLatency, "nfs.other_latency", "ms", kRate, kNfsMounts, kMountstats,
     "The same of all others."},
    {kNfsRetransmits, "nfs.retransmits_rate", "1/s", kRate, kNfsMounts, kMountstats,
     "Calls that were sent once more."},
    {kNfsTimeouts, "nfs.timeouts_rate", "1/s", kRate, kNfsMounts, kMountstats,
     "Calls that were not answered in time."},
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
    {kTcpSegments, "net.tcp_segments_rate", "1/s", kRate, "node", kSnmp,
     "TCP segments sent, slowly; those sent once more not included."},
    {kTcpRetransmits, "net.tcp_retransmits_rate", "1/s", kRate, "node", kSnmp,
     "TCP segments sent once more, slowly: they, or the word that they came, were lost on the "
     "way."},
    {kTcpErrors, "net.tcp_errors_rate", "1/s", kRate, "node", kSnmp,
     "TCP segments received broken, slowly."},
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
    {kCgroupOoms, "cgroup.ooms", "1", kGauge, "cgroup", "v2 memory.events",
     "Times since then that the group stood at its limit and nothing could be given back."},
    {kCgroupSwapUsed, "cgroup.swap_used", "bytes", kGauge, "cgroup", "v2 memory.swap.current",
     "Memory of the group that lies in swap; slowly."},
    {kCgroupTasksLimit, "cgroup.tasks_limit", "1", kGauge, "cgroup", "pids.max",
     "Processes and threads that the group may have, slowly; left out where there is no limit."},
    {kCgroupTasks, "cgroup.tasks", "1", kGauge, "cgroup", "pids.current",
     "Processes and threads of the group, slowly."},
    {kCgroupPsiCpuSome, "cgroup.psi_cpu_some10", "percent", kGauge, "cgroup", "v2 cpu.pressure",
     "Share of the last 10 s in which at least one task of the group waited for a core, held back "
     "by its limit included."},
    {kCgroupPsiIoSome, "cgroup.psi_io_some10", "percent", kGauge, "cgroup", "v2 io.pressure",
     "The same of I/O."},
    {kCgroupPsiIoFull, "cgroup.psi_io_full10", "percent", kGauge, "cgroup", "v2 io.pressure",
     "Share of the last 10 s in which all tasks of it that were not idle waited for I/O."},
    {kCgroupPsiMemorySome, "cgroup.psi_memory_some10", "percent", kGauge, "cgroup",
     "v2 memory.pressure", "Share in which at least one waited for memory."},
    {kCgroupPsiMemoryFull, "cgroup.psi_memory_full10", "percent", kGauge, "cgroup",
     "v2 memory.pressure", "Share in which all that were not idle did."},
    {kGpuUtilization, "gpu.utilization", "percent", kGauge, kGpus, kNvml,
     "Share of the driver's own last window (1/6 to 1 s) in which at least one kernel ran."},
    {kGpuMemoryActivity, "gpu.memory_activity", "percent", kGauge, kGpus, kNvml,
     "Share of that window in which device memory was read or written."},
    {kGpuMemoryTotal, "gpu.memory_total", "bytes", kGauge, kGpus, kNvml, "Device memory."},
    {kGpuMemoryUsed, "gpu.memory_used", "bytes", kGauge, kGpus, kNvml,
     "Device memory that is taken, by whomever; what the driver keeps for itself is not counted "
     "where it tells it apart."},
    {kGpuMemoryFree, "gpu.memory_free", "bytes", kGauge, kGpus, kNvml, "Device memory left."},
    {kGpuMemoryPercent, "gpu.memory_percent", "percent", kGauge, kGpus, kNvml,
     "Used, of the total."},
    {kGpuPower, "gpu.power", "W", kGauge, kGpus, kNvml,
     "Power of the whole board; on newer ones a mean over a second."},
    {kGpuPowerLimit, "gpu.power_limit", "W", kGauge, kGpus, kNvml, "The limit in force, slowly."},
    {kGpuClockSm, "gpu.clock_sm", "MHz", kGauge, kGpus, kNvml, "Clock of the multiprocessors."},
    {kGpuClockSmMax, "gpu.clock_sm_max", "MHz", kGauge, kGpus, kNvml,
     "The highest that the device can, slowly."},
    {kGpuClockMemory, "gpu.clock_memory", "MHz", kGauge, kGpus, kNvml, "Clock of the memory."},
    {kGpuThrottleReasons, "gpu.throttle_reasons", "1", kGauge, kGpus, kNvml,
     "Why the clock is not higher, bits of nvmlClocksThrottleReason: 1 idle, 2 set by a user, 4 "
     "power limit, 8 hardware slowdown, 16 in step with others, 32 and 64 heat, 128 power brake, "
     "256 display."},
    {kGpuTemperature, "gpu.temperature", "C", kGauge, kGpus, kNvml, "Of the chip."},
    {kGpuMemoryTemperature, "gpu.memory_temperature", "C", kGauge, kGpus, kNvml,
     "Of the memory, slowly; left out where there is no such sensor."},
    {kGpuPcieSend, "gpu.pcie_send_bytes_rate", "bytes/s", kRate, kGpus, kNvmlGpm,
     "Bytes that the device sent over PCIe, slowly: over the whole interval where the device "
     "counts (Hopper and later), else over the driver's window of 20 ms."},
    {kGpuPcieRecv, "gpu.pcie_recv_bytes_rate", "bytes/s", kRate, kGpus, kNvmlGpm,
     "Bytes that it received, likewise."},
    {kGpuPcieReplays, "gpu.pcie_replays_rate", "1/s", kRate, kGpus, kNvml,
     "Packets on PCIe that had to be sent once more, slowly: a bad slot or cable."},
    {kGpuNvlinkSend, "gpu.nvlink_send_bytes_rate", "bytes/s", kRate, kGpus, kNvml,
     "Bytes of data that the device sent over all its NVLinks, slowly; left out where it has "
     "none."},
    {kGpuNvlinkRecv, "gpu.nvlink_recv_bytes_rate", "bytes/s", kRate, kGpus, kNvml,
     "Bytes that it received."},
    {kGpuNvlinkErrors, "gpu.nvlink_errors_rate", "1/s", kRate, kGpus, kNvml,
     "Checksum errors, packets sent once more and recoveries of all its links, slowly."},
    {kGpuEccCorrected, "gpu.ecc_corrected", "1", kGauge, kGpus, kNvml,
     "Memory errors that were corrected since the driver was loaded, slowly."},
    {kGpuEccUncorrected, "gpu.ecc_uncorrected", "1", kGauge, kGpus, kNvml,
     "Memory errors that could not be: each one breaks a computation."},
    {kGpuSmActive, "gpu.sm_active", "percent", kRate, kGpus, kGpm,
     "Multiprocessors that were busy, on average over the interval, slowly. gpu.utilization counts "
     "a device as busy with one of them."},
    {kGpuTensorActive, "gpu.tensor_active", "percent", kRate, kGpus, kGpm,
     "Time in which the tensor cores worked, likewise."},
    {kGpuMemoryBandwidth, "gpu.memory_bandwidth", "percent", kRate, kGpus, kGpm,
     "Bandwidth of the device memory that was used, of the highest, likewise."},
    {kGpuProcessMemory, "gpu.process_memory", "bytes", kGauge, "proc:PID", kNvml,
     "Device memory that a process holds, on all devices together, slowly; other people's "
     "processes "
     "too. Left out where the driver does not tell; in a container it may tell the host's pids."},
    {kProcCpu, "proc.cpu", "percent", kRate, kProcess, kPidStat,
     "CPU time, user and system; 100 is one core. The kernel counts in ticks of 10 ms."},
    {kProcCpuUser, "proc.cpu_user", "percent", kRate, kProcess, kPidStat, "The part in user mode."},
    {kProcCpuSystem, "proc.cpu_system", "percent", kRate, kProcess, kPidStat,
     "The part in the kernel."},
    {kProcRss, "proc.rss", "bytes", kGauge, kProcess, kPidStat,
     "Resident memory. The sum over a tree counts shared pages once a process."},
    {kProcSwap, "proc.swap", "bytes", kGauge, kProcess, kPidStatus,
     "Memory that lies in swap; slowly."},
    {kProcMajorFaults, "proc.major_faults_rate", "1/s", kRate, kProcess, kPidStat,
     "Page faults that had to wait for a disk."},
    {kProcMinorFaults, "proc.minor_faults_rate", "1/s", kRate, kProcess, kPidStat,
     "Page faults that had not to: memory used for the first time, mostly."},
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
     "Times that the main thread gave up its core to wait for something, slowly. The kernel counts "
     "by "
     "thread: the main one is the one that trains, or loads."},
    {kProcInvoluntarySwitches, "proc.involuntary_switches_rate", "1/s", kRate, kProcess, kPidStatus,
     "Times that the main thread was taken off its core although it had work, slowly: more wants "
     "to run "
     "than there are cores."},
    {kProcRunDelay, "proc.run_delay", "percent", kRate, kProcess, "/proc/PID/schedstat",
     "Time that the main thread stood in the queue of a core, ready and not running; slowly."},
    {kProcPrivate, "proc.private", "bytes", kGauge, "proc:PID", "/proc/PID/smaps_rollup",
     "Memory that the process has written and that no other process uses; what a forked one still "
     "shares with its parent is not among it. Of processes that a process of the tree has started, "
     "from 32 MiB of resident memory, where it may have changed by 16 MiB; at most every 2 s, for "
     "1 % "
     "of a core in all, and of no process whose reading would take 0.6 s of it."},
});

constexpr bool IdsAreIndices() {
  for (std::size_t i = 0; i < kCatalogue.size(); ++i) {
    if (static_cast<std::size_t>(kCatalogue[i].id) != i) return false;
  }
  return true;
}
static_assert(IdsAreIndices(), "Describe() indexes by id");
static_assert(kCatalogue.back().id == kProcPrivate, "every id has its line");

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
      "What is marked *slowly* is read every second, or with each sample where these are rarer: to "
      "read it\n"
      "is dear, or it changes slowly itself. It has no rows in the samples between, and a rate of "
      "it is over\n"
      "the time since it was read before, about a second, not since the sample before. So at an "
      "interval of\n"
      "100 ms these come more rarely than the samples:\n\n"
      "- every second: `cgroup.swap_used`, `cgroup.tasks`, `cgroup.tasks_limit`, `net.tcp_*`, "
      "`nfs.*`,\n"
      "  `proc.swap`, `proc.voluntary_switches_rate`, `proc.involuntary_switches_rate`, "
      "`proc.run_delay`, and\n"
      "  of GPUs `gpu.power_limit`, `gpu.clock_sm_max`, `gpu.memory_temperature`, `gpu.pcie_*`, "
      "`gpu.nvlink_*`,\n"
      "  `gpu.ecc_*`, `gpu.sm_active`, `gpu.tensor_active`, `gpu.memory_bandwidth`, "
      "`gpu.process_memory`;\n"
      "- every 5 s: `cpu.frequency`, `cpu.run_delay`;\n"
      "- every 10 s: `fs.*`, but for `fs.silent`.\n\n"
      "Pressure (`psi.*`, `cgroup.psi_*`) has its rows in each sample and is read every second, "
      "so up to ten\n"
      "samples at 100 ms repeat a value; the kernel itself works it out every 2 s, as a mean of "
      "10 s.\n"
      "`cgroup.cpu_limit` and `cgroup.mem_limit` likewise are in each sample and looked up every "
      "10 s.\n\n"
      "A sample waits for the next time that the agent writes, at most 200 ms. If the agent is "
      "killed\n"
      "(`kill -9`), those that wait are lost; the event `gap` begins at its death, so up to 200 ms "
      "before it\n"
      "have no samples either. While the disk is full samples are dropped, and counted.\n\n"
      "The training's process tree is the command and all its descendants: one subject a process "
      "and\n"
      "`proc:tree` for their sum. New processes are looked for once a second where the machine has "
      "started a\n"
      "process or thread since the look before or one of the tree has ended, else every 10 s. "
      "Which of them\n"
      "are data loader workers says the event `process.start` with the same pid.\n\n"
      "The control group is that of the command, version 1 or 2; which it is, and its limits, is "
      "looked up\n"
      "every 10 s, and where its files cannot be read any more: a group that is made anew under "
      "the same path\n"
      "is read on, its rates from the second sample of it.\n\n"
      "GPUs are NVIDIA's, numbered as `nvidia-smi` does, read through the driver's own library\n"
      "(`libnvidia-ml.so.1`), which is loaded where it is there, on threads of its own: a driver "
      "that\n"
      "hangs holds up nothing else and is said (`gpu.silent`, [events](formats/events.md)), as is "
      "a\n"
      "device that is lost. What a device does not support is left out. Partitioned devices (MIG) "
      "are read\n"
      "as a whole and left as they are. `telltale doctor` says what was found.\n\n"
      "| Name | Unit | Kind | Subject | Source | Meaning |\n|---|---|---|---|---|---|\n";
  for (const MetricDesc& m : kCatalogue) {
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", m.name, m.unit,
                        m.kind == kRate ? "rate" : "gauge", m.subject, m.source, m.doc);
  }
  return page;
}

}  // namespace telltale::collect
