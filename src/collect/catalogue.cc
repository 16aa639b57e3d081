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
    {kMemTotal, "mem.total", "bytes", kGauge, "node", kMeminfo, "Memory that the kernel manages."},
    {kMemAvailable, "mem.available", "bytes", kGauge, "node", kMeminfo,
     "What new work can have without swapping, by the kernel's estimate."},
    {kMemUsed, "mem.used", "bytes", kGauge, "node", kMeminfo, "Total less available."},
    {kSwapUsed, "swap.used", "bytes", kGauge, "node", kMeminfo, "Swap total less swap free."},
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
    {kNetErrors, "net.errors_rate", "1/s", kRate, "net:NAME", kNetDev,
     "Packets with errors or dropped, both directions together."},
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
    {kProcCpu, "proc.cpu", "percent", kRate, kProcess, "/proc/PID/stat",
     "CPU time, user and system; 100 is one core. The kernel counts in ticks of 10 ms."},
    {kProcRss, "proc.rss", "bytes", kGauge, kProcess, "/proc/PID/stat",
     "Resident memory. The sum over a tree counts shared pages once a process."},
    {kProcReadBytes, "proc.read_bytes_rate", "bytes/s", kRate, kProcess, "/proc/PID/io",
     "Bytes that had to be fetched from storage; reads from the page cache are not among them."},
    {kProcWriteBytes, "proc.write_bytes_rate", "bytes/s", kRate, kProcess, "/proc/PID/io",
     "Bytes handed to the page cache for storage."},
    {kProcThreads, "proc.threads", "1", kGauge, kProcess, "/proc/PID/stat", "Threads."},
});

constexpr bool IdsAreIndices() {
  for (std::size_t i = 0; i < kCatalogue.size(); ++i) {
    if (static_cast<std::size_t>(kCatalogue[i].id) != i) return false;
  }
  return true;
}
static_assert(IdsAreIndices(), "Describe() indexes by id");
static_assert(kCatalogue.back().id == kProcThreads, "every id has its line");

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
      "`proc:tree` for their sum. New processes are looked for once a second.\n\n"
      "| Name | Unit | Kind | Subject | Source | Meaning |\n|---|---|---|---|---|---|\n";
  for (const MetricDesc& m : kCatalogue) {
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", m.name, m.unit,
                        m.kind == kRate ? "rate" : "gauge", m.subject, m.source, m.doc);
  }
  return page;
}

}  // namespace telltale::collect
