// SPDX-License-Identifier: Apache-2.0
// Reads the GPUs: what is quick with each sample, what is slow (or slow to change) about once a
// second. A device that is lost is an event, and is asked now and then whether it is back.
//
// Thread safety: Open() first; then ReadQuick() and ReadSlow() from one thread each.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collect/catalogue.h"
#include "collect/counter.h"
#include "collect/nvml_library.h"
#include "collect/sampler.h"

namespace telltale::collect {

struct GpuValue {
  MetricId id;
  int gpu = 0;  ///< Number of the device; −1 where `pid` is the subject.
  std::int32_t pid = 0;
  double value = 0;
};

/// What one round has found.
struct GpuRound {
  std::vector<GpuValue> values;
  std::vector<SystemEvent> events;
  std::uint64_t counter_resets = 0;

  void Clear() {
    values.clear();
    events.clear();
    counter_resets = 0;
  }
};

class GpuReader {
 public:
  explicit GpuReader(const Clock* clock) : clock_(clock) {}
  /// False where there is no device, for good. May take seconds.
  bool Open(const std::string& library);
  void ReadQuick(GpuRound* round);
  void ReadSlow(GpuRound* round);

 private:
  /// Calls that a device does not support are not made again: one bit each, by thread.
  using Unsupported = std::uint32_t;
  struct Gpu {
    int number = 0;
    std::string name;
    nvml::Device device = nullptr;
    std::atomic<bool> lost{false};
    std::int64_t ask_again_ns = 0;  ///< Quick thread: whether a lost one is back.
    Unsupported quick_unsupported = 0;
    // Of the slow thread.
    Unsupported slow_unsupported = 0;
    RateCounter pcie_replays, nvlink_sent, nvlink_received, nvlink_errors;
    bool gpm = false;
    nvml::GpmSample gpm_before = nullptr, gpm_after = nullptr;
    bool has_gpm_base = false;
  };

  /// One call: true where it gave something. Notes what is not supported, and that the device is
  /// lost.
  template <class Function, class... Arguments>
  bool Call(Gpu* gpu, Unsupported* unsupported, unsigned bit, GpuRound* round, Function function,
            Arguments... arguments);
  void Lose(Gpu* gpu, nvml::Return why, GpuRound* round);
  bool IsBack(Gpu* gpu, GpuRound* round);
  void ReadMemory(Gpu* gpu, GpuRound* round);
  void ReadFields(Gpu* gpu, GpuRound* round);
  void ReadPcie(Gpu* gpu, GpuRound* round);
  bool ReadGpm(Gpu* gpu, GpuRound* round);
  void ReadProcesses(Gpu* gpu, GpuRound* round);
  void ReadXids(GpuRound* round);

  const Clock* const clock_;
  NvmlLibrary library_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  nvml::EventSet events_ = nullptr;
  std::vector<nvml::ProcessInfo> processes_;
  std::map<unsigned, double> process_bytes_;
};

}  // namespace telltale::collect
