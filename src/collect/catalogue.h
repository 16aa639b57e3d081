// SPDX-License-Identifier: Apache-2.0
// The catalogue of metrics: one table of name, unit, kind, subject, source and meaning. The sampler
// writes rows only through it and docs/metrics.md is generated from it, so neither can part from
// it.
#pragma once
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
  kMemTotal,
  kMemAvailable,
  kMemUsed,
  kSwapUsed,
  kDiskReadBytes,
  kDiskWriteBytes,
  kDiskReadOps,
  kDiskWriteOps,
  kDiskBusy,
  kNetRecvBytes,
  kNetSendBytes,
  kNetErrors,
  kPsiCpuSome,
  kPsiIoSome,
  kPsiIoFull,
  kPsiMemorySome,
  kPsiMemoryFull,
  kProcCpu,
  kProcRss,
  kProcReadBytes,
  kProcWriteBytes,
  kProcThreads,
};

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
