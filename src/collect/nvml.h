// SPDX-License-Identifier: Apache-2.0
// The part of NVML that is used here, declared anew: the library comes with NVIDIA's driver, is
// loaded at run time, and nothing of it is needed to build. Names, numbers and layouts are those of
// its documented C interface (docs.nvidia.com/deploy/nvml-api), which keeps them for good: a struct
// that changed has a function with another suffix. A function that the driver is too old for is
// null.
#pragma once
#include <cstddef>
#include <cstdint>

namespace telltale::collect::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kTimeout = 10;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;
inline constexpr Return kUnknown = 999;

using Device = struct DeviceTag *;
using EventSet = struct EventSetTag *;
using GpmSample = struct GpmSampleTag *;

struct Utilization {
  unsigned gpu;     ///< Percent.
  unsigned memory;  ///< Percent.
};

struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;  ///< kMemoryV2.
  unsigned long long total, reserved, free, used;
};
inline constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | (2U << 24U);

/// Of nvmlDeviceGetComputeRunningProcesses_v2 and _v3.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;  ///< Bytes; kNotAvailable where it is not told.
  unsigned gpu_instance, compute_instance;
};
inline constexpr unsigned long long kNotAvailable = ~0ULL;

struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;  ///< Of a kXidEvent its number.
  unsigned gpu_instance, compute_instance;
};
inline constexpr unsigned long long kXidEvent = 0x8;

union Value {
  double d;
  unsigned ui;
  unsigned long ul;
  unsigned long long ull;
  long long ll;
  int si;
};
enum class ValueType : int { kDouble, kUnsigned, kUnsignedLong, kUnsigned64, kSigned64, kSigned };

struct FieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp;  ///< Microseconds since 1970.
  long long latency;
  ValueType type;
  Return result;
  Value value;
};
inline constexpr unsigned kAllLinks = ~0U;
inline constexpr unsigned kFieldCrcErrors = 38;       ///< NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
inline constexpr unsigned kFieldReplayErrors = 52;    ///< NVLINK_REPLAY_ERROR_COUNT_TOTAL
inline constexpr unsigned kFieldRecoveryErrors = 59;  ///< NVLINK_RECOVERY_ERROR_COUNT_TOTAL
inline constexpr unsigned kFieldMemoryTemperature = 82;
inline constexpr unsigned kFieldNvlinkSent = 138;      ///< NVLINK_THROUGHPUT_DATA_TX, KiB
inline constexpr unsigned kFieldNvlinkReceived = 139;  ///< NVLINK_THROUGHPUT_DATA_RX, KiB

struct GpmMetric {
  unsigned metric;
  Return result;
  double value;
  const char *short_name, *long_name, *unit;
};
inline constexpr unsigned kGpmSmActive = 2;
inline constexpr unsigned kGpmTensorActive = 5;
inline constexpr unsigned kGpmMemoryBandwidth = 10;
inline constexpr unsigned kGpmPcieSent = 20;      ///< MiB/s
inline constexpr unsigned kGpmPcieReceived = 21;  ///< MiB/s

/// The library reads `count` of the metrics; its own declaration has room for more.
struct GpmRequest {
  unsigned version;  ///< kGpmVersion.
  unsigned count;
  GpmSample before, after;
  GpmMetric metrics[8];
};
inline constexpr unsigned kGpmVersion = 1;

struct GpmSupport {
  unsigned version;  ///< kGpmVersion.
  unsigned supported;
};

static_assert(sizeof(MemoryV2) == 40 && sizeof(ProcessInfo) == 24 && sizeof(EventData) == 32);
static_assert(sizeof(FieldValue) == 40 && offsetof(FieldValue, value) == 32);
static_assert(sizeof(GpmMetric) == 40 && offsetof(GpmRequest, metrics) == 24);

inline constexpr int kClockSm = 1;
inline constexpr int kClockMemory = 2;
inline constexpr int kPcieSent = 0;
inline constexpr int kPcieReceived = 1;
inline constexpr int kEccCorrected = 0;
inline constexpr int kEccUncorrected = 1;
inline constexpr int kEccVolatile = 0;  ///< Since the driver was loaded.

/// X(name here, symbol, parameters).
#define TELLTALE_NVML_FUNCTIONS(X)                                                                 \
  X(init, "nvmlInit_v2", ())                                                                       \
  X(shutdown, "nvmlShutdown", ())                                                                  \
  X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned))                              \
  X(count, "nvmlDeviceGetCount_v2", (unsigned *))                                                  \
  X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned, Device *))                                 \
  X(name, "nvmlDeviceGetName", (Device, char *, unsigned))                                         \
  X(mig_mode, "nvmlDeviceGetMigMode", (Device, unsigned *, unsigned *))                            \
  X(utilization, "nvmlDeviceGetUtilizationRates", (Device, Utilization *))                         \
  X(memory, "nvmlDeviceGetMemoryInfo", (Device, Memory *))                                         \
  X(memory_v2, "nvmlDeviceGetMemoryInfo_v2", (Device, MemoryV2 *))                                 \
  X(power, "nvmlDeviceGetPowerUsage", (Device, unsigned *))                                        \
  X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (Device, unsigned *))                          \
  X(clock, "nvmlDeviceGetClockInfo", (Device, int, unsigned *))                                    \
  X(max_clock, "nvmlDeviceGetMaxClockInfo", (Device, int, unsigned *))                             \
  X(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons", (Device, unsigned long long *)) \
  X(temperature, "nvmlDeviceGetTemperature", (Device, int, unsigned *))                            \
  X(pcie_throughput, "nvmlDeviceGetPcieThroughput", (Device, int, unsigned *))                     \
  X(pcie_replays, "nvmlDeviceGetPcieReplayCounter", (Device, unsigned *))                          \
  X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (Device, int, int, unsigned long long *))           \
  X(fields, "nvmlDeviceGetFieldValues", (Device, int, FieldValue *))                               \
  X(processes_v3, "nvmlDeviceGetComputeRunningProcesses_v3", (Device, unsigned *, ProcessInfo *))  \
  X(processes_v2, "nvmlDeviceGetComputeRunningProcesses_v2", (Device, unsigned *, ProcessInfo *))  \
  X(event_types, "nvmlDeviceGetSupportedEventTypes", (Device, unsigned long long *))               \
  X(event_set, "nvmlEventSetCreate", (EventSet *))                                                 \
  X(register_events, "nvmlDeviceRegisterEvents", (Device, unsigned long long, EventSet))           \
  X(wait_events, "nvmlEventSetWait_v2", (EventSet, EventData *, unsigned))                         \
  X(gpm_support, "nvmlGpmQueryDeviceSupport", (Device, GpmSupport *))                              \
  X(gpm_alloc, "nvmlGpmSampleAlloc", (GpmSample *))                                                \
  X(gpm_sample, "nvmlGpmSampleGet", (Device, GpmSample))                                           \
  X(gpm_metrics, "nvmlGpmMetricsGet", (GpmRequest *))

}  // namespace telltale::collect::nvml
