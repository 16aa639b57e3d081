// SPDX-License-Identifier: Apache-2.0
#include "collect/gpu_reader.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "collect/source.h"

namespace telltale::collect {
namespace {

constexpr std::int64_t kAskAgainNs = 10'000'000'000;
constexpr int kMostXids = 64;  ///< Of one look.
constexpr double kMilli = 1e-3;

/// Bits of calls that a device may not support.
enum QuickCall : unsigned {
  kCallUtilization,
  kCallMemoryV2,
  kCallMemory,
  kCallPower,
  kCallClockSm,
  kCallClockMemory,
  kCallReasons,
  kCallTemperature
};
enum SlowCall : unsigned {
  kCallPowerLimit,
  kCallMaxClock,
  kCallEccCorrected,
  kCallEccUncorrected,
  kCallReplays,
  kCallFields,
  kCallPcieSent,
  kCallPcieReceived,
  kCallProcesses
};

/// What NVIDIA's list of XID errors says of the more frequent ones, and whether a program can cause
/// it; the others are the device's, or the driver's.
struct XidMeaning {
  unsigned long long number;
  bool program;
  std::string_view text;
};
constexpr std::array<XidMeaning, 19> kXids = {{
    {13, true, "exception in a kernel, an index out of range for one"},
    {31, true, "a kernel touched memory that is not mapped"},
    {32, false, "broken data came over PCIe"},
    {38, false, "the driver's firmware failed"},
    {43, true, "the device stopped a program's work"},
    {45, true, "a program's work was taken down, after another error or its end"},
    {48, false, "a memory error that cannot be corrected"},
    {56, false, "the display engine failed"},
    {61, false, "the device's controller halted"},
    {62, false, "the device's controller halted"},
    {63, false, "a row of memory was put out of use"},
    {64, false, "a row of memory could not be put out of use"},
    {74, false, "NVLink failed"},
    {79, false, "the device has fallen off the bus"},
    {92, false, "many memory errors are being corrected"},
    {94, false, "a memory error that cannot be corrected hit one program"},
    {95, false, "a memory error that cannot be corrected hit the whole device"},
    {119, false, "the device's system processor does not answer"},
    {120, false, "the device's system processor failed"},
}};

double NumberOf(const nvml::FieldValue& field) {
  switch (field.type) {
    case nvml::ValueType::kDouble:
      return field.value.d;
    case nvml::ValueType::kUnsigned:
      return field.value.ui;
    case nvml::ValueType::kUnsignedLong:
      return static_cast<double>(field.value.ul);
    case nvml::ValueType::kUnsigned64:
      return static_cast<double>(field.value.ull);
    case nvml::ValueType::kSigned64:
      return static_cast<double>(field.value.ll);
    case nvml::ValueType::kSigned:
      return field.value.si;
  }
  return 0;
}

std::string SubjectOf(int gpu) { return gpu < 0 ? "gpu" : fmt::format("gpu:{}", gpu); }

}  // namespace

bool GpuReader::Open(const std::string& library) {
  if (!library_.Open(library).empty() || library_.devices().empty()) return false;
  const NvmlFunctions& f = library_.functions();
  if (f.event_set != nullptr && f.event_set(&events_) != nvml::kSuccess) events_ = nullptr;
  for (std::size_t i = 0; i < library_.devices().size(); ++i) {
    auto gpu = std::make_unique<Gpu>();
    gpu->number = static_cast<int>(i);
    gpu->device = library_.devices()[i];
    gpu->name = library_.NameOf(gpu->device);
    if (gpu->device == nullptr) continue;
    unsigned long long types = 0;
    if (events_ != nullptr && f.register_events != nullptr && f.event_types != nullptr &&
        f.event_types(gpu->device, &types) == nvml::kSuccess && (types & nvml::kXidEvent) != 0) {
      f.register_events(gpu->device, nvml::kXidEvent, events_);
    }
    nvml::GpmSupport support{nvml::kGpmVersion, 0};
    gpu->gpm = f.gpm_support != nullptr && f.gpm_alloc != nullptr && f.gpm_sample != nullptr &&
               f.gpm_metrics != nullptr && !library_.HasMig(gpu->device) &&
               f.gpm_support(gpu->device, &support) == nvml::kSuccess && support.supported != 0 &&
               f.gpm_alloc(&gpu->gpm_before) == nvml::kSuccess &&
               f.gpm_alloc(&gpu->gpm_after) == nvml::kSuccess;
    gpus_.push_back(std::move(gpu));
  }
  return !gpus_.empty();
}

void GpuReader::Lose(Gpu* gpu, nvml::Return why, GpuRound* round) {
  if (gpu->lost.exchange(true)) return;
  round->events.push_back(NewEvent("gpu.lost", "high", SubjectOf(gpu->number),
                                   clock_->MonotonicNs(),
                                   fmt::format("gpu:{} is lost: {}", gpu->number, NvmlError(why)),
                                   {{"gpu", gpu->number}, {"name", gpu->name}, {"code", why}}));
}

template <class Function, class... Arguments>
bool GpuReader::Call(Gpu* gpu, Unsupported* unsupported, unsigned bit, GpuRound* round,
                     Function function, Arguments... arguments) {
  if (function == nullptr || (*unsupported & (1U << bit)) != 0) return false;
  const nvml::Return result = function(gpu->device, arguments...);
  if (result == nvml::kSuccess) return true;
  if (result == nvml::kNotSupported || result == nvml::kNoPermission) *unsupported |= 1U << bit;
  if (result == nvml::kGpuIsLost || result == nvml::kResetRequired) Lose(gpu, result, round);
  return false;
}

bool GpuReader::IsBack(Gpu* gpu, GpuRound* round) {
  const std::int64_t now_ns = clock_->MonotonicNs();
  if (now_ns < gpu->ask_again_ns) return false;
  const bool first = gpu->ask_again_ns == 0;
  gpu->ask_again_ns = now_ns + kAskAgainNs;
  unsigned celsius = 0;
  if (first || library_.functions().temperature == nullptr ||
      library_.functions().temperature(gpu->device, 0, &celsius) != nvml::kSuccess) {
    return false;
  }
  gpu->ask_again_ns = 0;
  gpu->lost = false;
  round->events.push_back(NewEvent("gpu.back", "info", SubjectOf(gpu->number), now_ns,
                                   fmt::format("gpu:{} answers again", gpu->number),
                                   {{"gpu", gpu->number}}));
  return true;
}

void GpuReader::ReadMemory(Gpu* gpu, GpuRound* round) {
  const NvmlFunctions& f = library_.functions();
  Unsupported* const not_there = &gpu->quick_unsupported;
  double total = 0, used = 0, free = 0;
  nvml::MemoryV2 second{};
  second.version = nvml::kMemoryV2;
  if (Call(gpu, not_there, kCallMemoryV2, round, f.memory_v2, &second)) {
    total = static_cast<double>(second.total);
    used = static_cast<double>(second.used);
    free = static_cast<double>(second.free);
  } else {
    nvml::Memory first{};
    if (!Call(gpu, not_there, kCallMemory, round, f.memory, &first)) return;
    total = static_cast<double>(first.total);
    used = static_cast<double>(first.used);
    free = static_cast<double>(first.free);
  }
  const int n = gpu->number;
  round->values.push_back({MetricId::kGpuMemoryTotal, n, 0, total});
  round->values.push_back({MetricId::kGpuMemoryUsed, n, 0, used});
  round->values.push_back({MetricId::kGpuMemoryFree, n, 0, free});
  if (total > 0) round->values.push_back({MetricId::kGpuMemoryPercent, n, 0, 100 * used / total});
}

void GpuReader::ReadQuick(GpuRound* round) {
  const NvmlFunctions& f = library_.functions();
  for (const auto& owned : gpus_) {
    Gpu* const gpu = owned.get();
    if (gpu->lost && !IsBack(gpu, round)) continue;
    Unsupported* const not_there = &gpu->quick_unsupported;
    const auto add = [&](MetricId id, double value) {
      round->values.push_back({id, gpu->number, 0, value});
    };
    nvml::Utilization utilization{};
    if (Call(gpu, not_there, kCallUtilization, round, f.utilization, &utilization)) {
      add(MetricId::kGpuUtilization, utilization.gpu);
      add(MetricId::kGpuMemoryActivity, utilization.memory);
    }
    if (gpu->lost) continue;
    ReadMemory(gpu, round);
    unsigned number = 0;
    if (Call(gpu, not_there, kCallPower, round, f.power, &number)) {
      add(MetricId::kGpuPower, number * kMilli);
    }
    if (Call(gpu, not_there, kCallClockSm, round, f.clock, nvml::kClockSm, &number)) {
      add(MetricId::kGpuClockSm, number);
    }
    if (Call(gpu, not_there, kCallClockMemory, round, f.clock, nvml::kClockMemory, &number)) {
      add(MetricId::kGpuClockMemory, number);
    }
    unsigned long long reasons = 0;
    if (Call(gpu, not_there, kCallReasons, round, f.throttle_reasons, &reasons)) {
      add(MetricId::kGpuThrottleReasons, static_cast<double>(reasons));
    }
    if (Call(gpu, not_there, kCallTemperature, round, f.temperature, 0, &number)) {
      add(MetricId::kGpuTemperature, number);
    }
  }
}

void GpuReader::ReadFields(Gpu* gpu, GpuRound* round) {
  constexpr std::size_t kSent = 0, kReceived = 1, kFirstError = 2, kHeat = 5;
  std::array<nvml::FieldValue, 6> fields{};
  constexpr std::array<unsigned, 6> kIds = {
      nvml::kFieldNvlinkSent,   nvml::kFieldNvlinkReceived, nvml::kFieldCrcErrors,
      nvml::kFieldReplayErrors, nvml::kFieldRecoveryErrors, nvml::kFieldMemoryTemperature};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    fields[i].field = kIds[i];
    fields[i].result = nvml::kUnknown;
    if (i < kFirstError) fields[i].scope = nvml::kAllLinks;
  }
  const std::int64_t now_ns = clock_->MonotonicNs();
  if (!Call(gpu, &gpu->slow_unsupported, kCallFields, round, library_.functions().fields,
            static_cast<int>(fields.size()), fields.data())) {
    return;
  }
  const auto rate = [&](RateCounter* counter, double value, MetricId id, double factor) {
    const auto grown =
        counter->Advance(static_cast<std::uint64_t>(value), now_ns, &round->counter_resets);
    if (grown) round->values.push_back({id, gpu->number, 0, *grown * factor});
  };
  constexpr double kKiB = 1 << 10;
  if (fields[kSent].result == nvml::kSuccess) {
    rate(&gpu->nvlink_sent, NumberOf(fields[kSent]), MetricId::kGpuNvlinkSend, kKiB);
  }
  if (fields[kReceived].result == nvml::kSuccess) {
    rate(&gpu->nvlink_received, NumberOf(fields[kReceived]), MetricId::kGpuNvlinkRecv, kKiB);
  }
  double errors = 0;
  bool counts = false;
  for (std::size_t i = kFirstError; i < kHeat; ++i) {
    if (fields[i].result != nvml::kSuccess) continue;
    errors += NumberOf(fields[i]);
    counts = true;
  }
  if (counts) rate(&gpu->nvlink_errors, errors, MetricId::kGpuNvlinkErrors, 1);
  if (fields[kHeat].result == nvml::kSuccess && NumberOf(fields[kHeat]) > 0) {
    round->values.push_back(
        {MetricId::kGpuMemoryTemperature, gpu->number, 0, NumberOf(fields[kHeat])});
  }
}

bool GpuReader::ReadGpm(Gpu* gpu, GpuRound* round) {
  if (!gpu->gpm) return false;
  const NvmlFunctions& f = library_.functions();
  if (f.gpm_sample(gpu->device, gpu->gpm_after) != nvml::kSuccess) {
    // Another user of the counters, or one that may not: for good.
    gpu->gpm = false;
    return false;
  }
  if (!std::exchange(gpu->has_gpm_base, true)) {
    std::swap(gpu->gpm_before, gpu->gpm_after);
    return true;
  }
  constexpr std::array<std::pair<unsigned, MetricId>, 5> kMetrics = {
      {{nvml::kGpmSmActive, MetricId::kGpuSmActive},
       {nvml::kGpmTensorActive, MetricId::kGpuTensorActive},
       {nvml::kGpmMemoryBandwidth, MetricId::kGpuMemoryBandwidth},
       {nvml::kGpmPcieSent, MetricId::kGpuPcieSend},
       {nvml::kGpmPcieReceived, MetricId::kGpuPcieRecv}}};
  nvml::GpmRequest request{};
  request.version = nvml::kGpmVersion;
  request.count = kMetrics.size();
  request.before = gpu->gpm_before;
  request.after = gpu->gpm_after;
  for (std::size_t i = 0; i < kMetrics.size(); ++i) request.metrics[i].metric = kMetrics[i].first;
  constexpr double kMiB = 1 << 20;
  const bool told = f.gpm_metrics(&request) == nvml::kSuccess;
  std::swap(gpu->gpm_before, gpu->gpm_after);
  if (!told) return false;
  bool pcie = false;
  for (std::size_t i = 0; i < kMetrics.size(); ++i) {
    if (request.metrics[i].result != nvml::kSuccess) continue;
    const bool bytes = kMetrics[i].first >= nvml::kGpmPcieSent;
    pcie = pcie || bytes;
    round->values.push_back(
        {kMetrics[i].second, gpu->number, 0, request.metrics[i].value * (bytes ? kMiB : 1)});
  }
  return pcie;
}

void GpuReader::ReadPcie(Gpu* gpu, GpuRound* round) {
  // Each call watches the bus for 20 ms.
  const NvmlFunctions& f = library_.functions();
  constexpr double kKilobyte = 1000;
  unsigned value = 0;
  if (Call(gpu, &gpu->slow_unsupported, kCallPcieSent, round, f.pcie_throughput, nvml::kPcieSent,
           &value)) {
    round->values.push_back({MetricId::kGpuPcieSend, gpu->number, 0, value * kKilobyte});
  }
  if (Call(gpu, &gpu->slow_unsupported, kCallPcieReceived, round, f.pcie_throughput,
           nvml::kPcieReceived, &value)) {
    round->values.push_back({MetricId::kGpuPcieRecv, gpu->number, 0, value * kKilobyte});
  }
}

void GpuReader::ReadProcesses(Gpu* gpu, GpuRound* round) {
  const NvmlFunctions& f = library_.functions();
  const auto function = f.processes_v3 != nullptr ? f.processes_v3 : f.processes_v2;
  // Room for twice as many as are asked for: some drivers of 2023 wrote larger entries.
  constexpr unsigned kMostProcesses = 512;
  processes_.resize(2 * static_cast<std::size_t>(kMostProcesses));
  unsigned count = kMostProcesses;
  if (!Call(gpu, &gpu->slow_unsupported, kCallProcesses, round, function, &count,
            processes_.data())) {
    return;
  }
  for (unsigned i = 0; i < count && i < kMostProcesses; ++i) {
    const nvml::ProcessInfo& process = processes_[i];
    if (process.pid == 0 || process.used_memory == nvml::kNotAvailable) continue;
    process_bytes_[process.pid] += static_cast<double>(process.used_memory);
  }
}

void GpuReader::ReadXids(GpuRound* round) {
  const NvmlFunctions& f = library_.functions();
  if (events_ == nullptr || f.wait_events == nullptr) return;
  for (int i = 0; i < kMostXids; ++i) {
    nvml::EventData event{};
    if (f.wait_events(events_, &event, 0) != nvml::kSuccess) return;
    if (event.type != nvml::kXidEvent) continue;
    int number = -1;
    for (const auto& gpu : gpus_) {
      if (gpu->device == event.device) number = gpu->number;
    }
    const XidMeaning* meaning = nullptr;
    for (const XidMeaning& known : kXids) {
      if (known.number == event.data) meaning = &known;
    }
    const bool program = meaning != nullptr && meaning->program;
    const nlohmann::ordered_json data = {
        {"gpu", number}, {"xid", event.data}, {"program", program}};
    const std::string subject = number < 0 ? std::string("a GPU") : fmt::format("gpu:{}", number);
    round->events.push_back(NewEvent(
        "gpu.xid", program ? "medium" : "high", SubjectOf(number), clock_->MonotonicNs(),
        meaning == nullptr
            ? fmt::format("{} reports error XID {}", subject, event.data)
            : fmt::format("{} reports error XID {}: {}", subject, event.data, meaning->text),
        data));
  }
}

void GpuReader::ReadSlow(GpuRound* round) {
  const NvmlFunctions& f = library_.functions();
  process_bytes_.clear();
  ReadXids(round);
  for (const auto& owned : gpus_) {
    Gpu* const gpu = owned.get();
    if (gpu->lost) continue;
    Unsupported* const not_there = &gpu->slow_unsupported;
    const auto add = [&](MetricId id, double value) {
      round->values.push_back({id, gpu->number, 0, value});
    };
    unsigned number = 0;
    if (Call(gpu, not_there, kCallPowerLimit, round, f.power_limit, &number)) {
      add(MetricId::kGpuPowerLimit, number * kMilli);
    }
    if (Call(gpu, not_there, kCallMaxClock, round, f.max_clock, nvml::kClockSm, &number)) {
      add(MetricId::kGpuClockSmMax, number);
    }
    unsigned long long errors = 0;
    if (Call(gpu, not_there, kCallEccCorrected, round, f.ecc_errors, nvml::kEccCorrected,
             nvml::kEccVolatile, &errors)) {
      add(MetricId::kGpuEccCorrected, static_cast<double>(errors));
    }
    if (Call(gpu, not_there, kCallEccUncorrected, round, f.ecc_errors, nvml::kEccUncorrected,
             nvml::kEccVolatile, &errors)) {
      add(MetricId::kGpuEccUncorrected, static_cast<double>(errors));
    }
    const std::int64_t now_ns = clock_->MonotonicNs();
    if (Call(gpu, not_there, kCallReplays, round, f.pcie_replays, &number)) {
      const auto rate = gpu->pcie_replays.Advance(number, now_ns, &round->counter_resets);
      if (rate) add(MetricId::kGpuPcieReplays, *rate);
    }
    ReadFields(gpu, round);
    ReadProcesses(gpu, round);
    if (!gpu->lost && !ReadGpm(gpu, round)) ReadPcie(gpu, round);
  }
  for (const auto& [pid, bytes] : process_bytes_) {
    round->values.push_back(
        {MetricId::kGpuProcessMemory, -1, static_cast<std::int32_t>(pid), bytes});
  }
}

}  // namespace telltale::collect
