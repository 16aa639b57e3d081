// SPDX-License-Identifier: Apache-2.0
// The catalogue of metrics: one table of name, unit, kind, subject, source and meaning. The sampler
// writes rows only through it and docs/metrics.md is generated from it, so neither can part from
// it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace telltale::collect {

/// Index into Catalogue(); not written anywhere, so free to change.
enum class MetricId : std::uint8_t {
  kCpuUser,
  kCpuSystem,
  kCpuIowait,
  kCpuSteal,
  kCpuIdle,
  kCpuBusy,
  kCpuRunDelay,
  kCpuSwitches,
  kCpuForks,
  kCpuRunning,
  kCpuBlocked,
  kCpuFrequency,
  kMemTotal,
  kMemAvailable,
  kMemUsed,
  kMemCached,
  kMemFaults,
  kMemMajorFaults,
  kSwapTotal,
  kSwapUsed,
  kSwapIn,
  kSwapOut,
  kDiskReadBytes,
  kDiskWriteBytes,
  kDiskReadOps,
  kDiskWriteOps,
  kDiskBusy,
  kDiskReadLatency,
  kDiskWriteLatency,
  kDiskQueue,
  kFsSize,
  kFsAvailable,
  kFsUsed,
  kFsInodesUsed,
  kFsSilent,
  kNfsReadBytes,
  kNfsWriteBytes,
  kNfsReadOps,
  kNfsWriteOps,
  kNfsOtherOps,
  kNfsReadLatency,
  kNfsWriteLatency,
  kNfsOtherLatency,
  kNfsRetransmits,
  kNfsTimeouts,
  kNetRecvBytes,
  kNetSendBytes,
  kNetRecvPackets,
  kNetSendPackets,
  kNetErrors,
  kNetDrops,
  kTcpSegments,
  kTcpRetransmits,
  kTcpErrors,
  kPsiCpuSome,
  kPsiIoSome,
  kPsiIoFull,
  kPsiMemorySome,
  kPsiMemoryFull,
  kCgroupCpuLimit,
  kCgroupCpuUsed,
  kCgroupCpuThrottledPeriods,
  kCgroupCpuThrottled,
  kCgroupMemLimit,
  kCgroupMemUsed,
  kCgroupMemLimitHits,
  kCgroupOomKills,
  kCgroupOoms,
  kCgroupSwapUsed,
  kCgroupTasksLimit,
  kCgroupTasks,
  kCgroupPsiCpuSome,
  kCgroupPsiIoSome,
  kCgroupPsiIoFull,
  kCgroupPsiMemorySome,
  kCgroupPsiMemoryFull,
  kGpuUtilization,
  kGpuMemoryActivity,
  kGpuMemoryTotal,
  kGpuMemoryUsed,
  kGpuMemoryFree,
  kGpuMemoryPercent,
  kGpuPower,
  kGpuPowerLimit,
  kGpuClockSm,
  kGpuClockSmMax,
  kGpuClockMemory,
  kGpuThrottleReasons,
  kGpuTemperature,
  kGpuMemoryTemperature,
  kGpuPcieSend,
  kGpuPcieRecv,
  kGpuPcieReplays,
  kGpuNvlinkSend,
  kGpuNvlinkRecv,
  kGpuNvlinkErrors,
  kGpuEccCorrected,
  kGpuEccUncorrected,
  kGpuSmActive,
  kGpuTensorActive,
  kGpuMemoryBandwidth,
  kGpuProcessMemory,
  // Of a process; kProcFirst and kProcCount below follow these.
  kProcCpu,
  kProcCpuUser,
  kProcCpuSystem,
  kProcRss,
  kProcSwap,
  kProcMajorFaults,
  kProcMinorFaults,
  kProcReadBytes,
  kProcWriteBytes,
  kProcReadCalls,
  kProcWriteCalls,
  kProcReadCallBytes,
  kProcWriteCallBytes,
  kProcThreads,
  kProcVoluntarySwitches,
  kProcInvoluntarySwitches,
  kProcRunDelay,
  kProcPrivate,
};

inline constexpr std::size_t kProcFirst = static_cast<std::size_t>(MetricId::kProcCpu);
inline constexpr std::size_t kProcCount =
    static_cast<std::size_t>(MetricId::kProcPrivate) - kProcFirst + 1;

enum class MetricKind : std::uint8_t {
  kGauge,  ///< The value at the moment of reading.
  kRate,   ///< Difference of a counter over the time since the sample before.
};

struct MetricDesc {
  MetricId id;
  std::string_view name;
  std::string_view unit;
  MetricKind kind;
  std::string_view subject;
  std::string_view source;
  std::string_view doc;
};

std::span<const MetricDesc> Catalogue();
const MetricDesc& Describe(MetricId id);

/// docs/metrics.md, whole.
std::string CataloguePage();

}  // namespace telltale::collect
