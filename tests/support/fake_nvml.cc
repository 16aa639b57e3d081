// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 for tests: devices that do what a text file says, which may change meanwhile.
// TELLTALE_FAKE_NVML names the file; without it the driver is not loaded. Lines:
//   gpus 2                    number of devices, 1 where it is not said
//   utilization 37            of all devices; a value of "no" is not supported
//   0.utilization 5           of one; names: kNames
//   0.process.4711 1048576    a process and what it holds
//   0.xid 79                  an error, delivered once however often the file is read
//   0.lost 1                  every call says that the device is lost
//   hang 1                    calls do not return until the file says otherwise
// Thread-safe, as NVML.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collect/nvml.h"

namespace {

using namespace telltale::collect::nvml;

constexpr int kMaxGpus = 64;
constexpr double kNo = -2;

enum Key {
  kUtilization,
  kMemoryActivity,
  kMemoryTotal,
  kMemoryReserved,
  kMemoryUsed,
  kPower,
  kPowerLimit,
  kSmClock,
  kSmClockMax,
  kMemoryClock,
  kReasons,
  kTemperature,
  kMemoryTemperature,
  kPcieSentRate,
  kPcieReceivedRate,
  kReplays,
  kNvlinkSent,
  kNvlinkReceived,
  kNvlinkErrors,
  kCorrected,
  kUncorrected,
  kMig,
  kGpm,
  kSmActive,
  kTensorActive,
  kMemoryBandwidth,
  kLost,
  kKeys
};
struct NamedDefault {
  std::string_view name;
  double value;
};
/// What a device says of which the file says nothing; units as NVML's.
constexpr std::array<NamedDefault, kKeys> kNames = {{{"utilization", 0},
                                                     {"memory_activity", 0},
                                                     {"memory_total", 85899345920},
                                                     {"memory_reserved", 0},
                                                     {"memory_used", 0},
                                                     {"power", 70000},
                                                     {"power_limit", 700000},
                                                     {"clock_sm", 1980},
                                                     {"clock_sm_max", 1980},
                                                     {"clock_memory", 2619},
                                                     {"throttle_reasons", 0},
                                                     {"temperature", 35},
                                                     {"memory_temperature", 40},
                                                     {"pcie_sent", 0},
                                                     {"pcie_received", 0},
                                                     {"pcie_replays", 0},
                                                     {"nvlink_sent", kNo},
                                                     {"nvlink_received", kNo},
                                                     {"nvlink_errors", kNo},
                                                     {"ecc_corrected", 0},
                                                     {"ecc_uncorrected", 0},
                                                     {"mig", 0},
                                                     {"gpm", 0},
                                                     {"sm_active", 0},
                                                     {"tensor_active", 0},
                                                     {"memory_bandwidth", 0},
                                                     {"lost", 0}}};

struct FakeGpu {
  std::array<double, kKeys> values;
  std::vector<std::pair<unsigned, unsigned long long>> processes;
};

struct Machine {
  std::mutex mutex;
  struct stat read {};
  bool hang = false;
  unsigned count = 1;
  std::array<FakeGpu, kMaxGpus> gpus;
  std::vector<std::pair<int, int>> said;    ///< Errors that were delivered or wait.
  std::deque<std::pair<int, int>> waiting;  ///< Device and error.
  std::vector<std::pair<int, int>> found;   ///< In the file read last.
};

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

Device DeviceOf(unsigned number) {
  return reinterpret_cast<Device>(static_cast<std::uintptr_t>(number) + 1);
}
unsigned NumberOf(Device device) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}

void ReadLine(Machine* machine, const std::string& name, const std::string& text) {
  const double value = text == "no" ? kNo : std::strtod(text.c_str(), nullptr);
  if (name == "gpus") machine->count = std::min(static_cast<unsigned>(value), 64U);
  if (name == "hang") machine->hang = value != 0;
  std::string_view rest = name;
  int first = 0, last = kMaxGpus - 1;
  if (const std::size_t dot = rest.find('.'); dot != std::string_view::npos) {
    std::from_chars(rest.data(), rest.data() + dot, first);
    first = std::clamp(first, 0, kMaxGpus - 1);
    last = first;
    rest.remove_prefix(dot + 1);
  }
  if (rest == "xid") machine->found.emplace_back(first, static_cast<int>(value));
  for (int gpu = first; gpu <= last; ++gpu) {
    if (rest.starts_with("process.")) {
      const unsigned long pid = std::strtoul(rest.data() + 8, nullptr, 10);
      machine->gpus[gpu].processes.emplace_back(static_cast<unsigned>(pid),
                                                static_cast<unsigned long long>(value));
    }
    for (std::size_t key = 0; key < kKeys; ++key) {
      if (kNames[key].name == rest) machine->gpus[gpu].values[key] = value;
    }
  }
}

/// Reads the file where it has changed. False: there is none.
bool ReadScript(Machine* machine) {
  const char* const path = std::getenv("TELLTALE_FAKE_NVML");
  struct stat now {};
  if (path == nullptr || ::stat(path, &now) != 0) return false;
  if (now.st_ino == machine->read.st_ino && now.st_size == machine->read.st_size &&
      now.st_mtim.tv_sec == machine->read.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == machine->read.st_mtim.tv_nsec) {
    return true;
  }
  machine->read = now;
  machine->hang = false;
  machine->found.clear();
  for (FakeGpu& gpu : machine->gpus) {
    for (std::size_t key = 0; key < kKeys; ++key) gpu.values[key] = kNames[key].value;
    gpu.processes.clear();
  }
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value) ReadLine(machine, name, value);
  }
  for (const auto& error : machine->found) {
    if (std::find(machine->said.begin(), machine->said.end(), error) != machine->said.end()) {
      continue;
    }
    machine->said.push_back(error);
    machine->waiting.push_back(error);
  }
  return true;
}

/// At the begin of each round of what is slow, which a thread of its own may read first.
void LookAgain() {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  ReadScript(&machine);
}

/// At the begin of each round: looks at the file, and hangs for as long as it says so.
void BeginRound() {
  Machine& machine = TheMachine();
  for (;;) {
    {
      const std::scoped_lock lock(machine.mutex);
      ReadScript(&machine);
      if (!machine.hang) return;
    }
    ::usleep(2000);
  }
}

Return ValueOf(Device device, Key key, double* out) {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  const FakeGpu& gpu = machine.gpus[NumberOf(device)];
  if (gpu.values[kLost] > 0) return kGpuIsLost;
  if (gpu.values[key] == kNo) return kNotSupported;
  *out = gpu.values[key];
  return kSuccess;
}

template <class T>
Return Give(Device device, Key key, T* out) {
  double value = 0;
  const Return result = ValueOf(device, key, &value);
  if (result == kSuccess) *out = static_cast<T>(value);
  return result;
}

}  // namespace

extern "C" {

Return nvmlInit_v2() {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  return ReadScript(&machine) ? kSuccess : kDriverNotLoaded;
}
Return nvmlShutdown() { return kSuccess; }
Return nvmlSystemGetDriverVersion(char* out, unsigned size) {
  std::strncpy(out, "000.00.fake", size);
  return kSuccess;
}
Return nvmlDeviceGetCount_v2(unsigned* out) {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  *out = machine.count;
  return kSuccess;
}
Return nvmlDeviceGetHandleByIndex_v2(unsigned number, Device* out) {
  *out = DeviceOf(number);
  return kSuccess;
}
Return nvmlDeviceGetName(Device device, char* out, unsigned size) {
  double value = 0;
  if (const Return result = ValueOf(device, kLost, &value); result != kSuccess) return result;
  std::strncpy(out, "Fake H100", size);
  return kSuccess;
}
Return nvmlDeviceGetMigMode(Device device, unsigned* now, unsigned* pending) {
  const Return result = Give(device, kMig, now);
  *pending = *now;
  return result;
}
Return nvmlDeviceGetUtilizationRates(Device device, Utilization* out) {
  if (NumberOf(device) == 0) BeginRound();
  const Return result = Give(device, kUtilization, &out->gpu);
  return result == kSuccess ? Give(device, kMemoryActivity, &out->memory) : result;
}
Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* out) {
  if (out->version != kMemoryV2) return kUnknown;
  const Return result = Give(device, kMemoryUsed, &out->used);
  if (result != kSuccess) return result;
  Give(device, kMemoryTotal, &out->total);
  Give(device, kMemoryReserved, &out->reserved);
  out->free = out->total - out->used - out->reserved;
  return kSuccess;
}
Return nvmlDeviceGetPowerUsage(Device device, unsigned* out) { return Give(device, kPower, out); }
Return nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* out) {
  if (NumberOf(device) == 0) LookAgain();
  return Give(device, kPowerLimit, out);
}
Return nvmlDeviceGetClockInfo(Device device, int which, unsigned* out) {
  return Give(device, which == kClockSm ? kSmClock : kMemoryClock, out);
}
Return nvmlDeviceGetMaxClockInfo(Device device, int, unsigned* out) {
  return Give(device, kSmClockMax, out);
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* out) {
  return Give(device, kReasons, out);
}
Return nvmlDeviceGetTemperature(Device device, int, unsigned* out) {
  return Give(device, kTemperature, out);
}
Return nvmlDeviceGetPcieThroughput(Device device, int which, unsigned* out) {
  const Return result = Give(device, which == kPcieSent ? kPcieSentRate : kPcieReceivedRate, out);
  if (result == kSuccess) ::usleep(20'000);
  return result;
}
Return nvmlDeviceGetPcieReplayCounter(Device device, unsigned* out) {
  return Give(device, kReplays, out);
}
Return nvmlDeviceGetTotalEccErrors(Device device, int which, int, unsigned long long* out) {
  return Give(device, which == kEccCorrected ? kCorrected : kUncorrected, out);
}
Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue* out) {
  double value = 0;
  if (const Return result = ValueOf(device, kLost, &value); result != kSuccess) return result;
  for (int i = 0; i < count; ++i) {
    Key key = kKeys;
    if (out[i].field == kFieldNvlinkSent && out[i].scope == kAllLinks) key = kNvlinkSent;
    if (out[i].field == kFieldNvlinkReceived && out[i].scope == kAllLinks) key = kNvlinkReceived;
    if (out[i].field == kFieldCrcErrors) key = kNvlinkErrors;
    if (out[i].field == kFieldMemoryTemperature) key = kMemoryTemperature;
    out[i].result = key == kKeys ? kNotSupported : ValueOf(device, key, &value);
    out[i].type = ValueType::kUnsigned64;
    out[i].value.ull = static_cast<unsigned long long>(value);
  }
  return kSuccess;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, ProcessInfo* out) {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  const auto& processes = machine.gpus[NumberOf(device)].processes;
  if (*count < processes.size()) {
    *count = static_cast<unsigned>(processes.size());
    return kInsufficientSize;
  }
  *count = static_cast<unsigned>(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) {
    out[i] = {processes[i].first, processes[i].second, ~0U, ~0U};
  }
  return kSuccess;
}
Return nvmlDeviceGetSupportedEventTypes(Device, unsigned long long* out) {
  *out = kXidEvent;
  return kSuccess;
}
Return nvmlEventSetCreate(EventSet* out) {
  *out = reinterpret_cast<EventSet>(&TheMachine());
  return kSuccess;
}
Return nvmlDeviceRegisterEvents(Device, unsigned long long types, EventSet) {
  return types == kXidEvent ? kSuccess : kNotSupported;
}
Return nvmlEventSetWait_v2(EventSet, EventData* out, unsigned) {
  Machine& machine = TheMachine();
  const std::scoped_lock lock(machine.mutex);
  ReadScript(&machine);
  if (machine.waiting.empty()) return kTimeout;
  const auto [gpu, error] = machine.waiting.front();
  machine.waiting.pop_front();
  *out = {DeviceOf(static_cast<unsigned>(gpu)), kXidEvent, static_cast<unsigned>(error), ~0U, ~0U};
  return kSuccess;
}
Return nvmlGpmQueryDeviceSupport(Device device, GpmSupport* out) {
  return Give(device, kGpm, &out->supported);
}
Return nvmlGpmSampleAlloc(GpmSample* out) {
  *out = reinterpret_cast<GpmSample>(new Device(nullptr));
  return kSuccess;
}
Return nvmlGpmSampleGet(Device device, GpmSample sample) {
  *reinterpret_cast<Device*>(sample) = device;
  double value = 0;
  return ValueOf(device, kLost, &value);
}
Return nvmlGpmMetricsGet(GpmRequest* request) {
  const Device device = *reinterpret_cast<Device*>(request->after);
  if (request->version != kGpmVersion || device != *reinterpret_cast<Device*>(request->before)) {
    return kUnknown;
  }
  for (unsigned i = 0; i < request->count; ++i) {
    GpmMetric& metric = request->metrics[i];
    const Key key = metric.metric == kGpmSmActive          ? kSmActive
                    : metric.metric == kGpmTensorActive    ? kTensorActive
                    : metric.metric == kGpmMemoryBandwidth ? kMemoryBandwidth
                    : metric.metric == kGpmPcieSent        ? kPcieSentRate
                                                           : kPcieReceivedRate;
    metric.result = ValueOf(device, key, &metric.value);
  }
  return kSuccess;
}

}  // extern "C"
