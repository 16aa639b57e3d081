// SPDX-License-Identifier: Apache-2.0
// The driver's library, loaded: its functions, its devices, and in words what went wrong.
//
// Thread safety: Open() first and once; then as NVML itself, whose functions any threads may call.
// Ownership: the library stays loaded, for a thread may hang in it.
#pragma once
#include <string>
#include <vector>

#include "collect/nvml.h"

namespace telltale::collect {

struct NvmlFunctions {
#define TELLTALE_NVML_POINTER(name, symbol, parameters) nvml::Return(*name) parameters = nullptr;
  using Device = nvml::Device;
  using EventSet = nvml::EventSet;
  using GpmSample = nvml::GpmSample;
  using Utilization = nvml::Utilization;
  using Memory = nvml::Memory;
  using MemoryV2 = nvml::MemoryV2;
  using ProcessInfo = nvml::ProcessInfo;
  using EventData = nvml::EventData;
  using FieldValue = nvml::FieldValue;
  using GpmRequest = nvml::GpmRequest;
  using GpmSupport = nvml::GpmSupport;
  TELLTALE_NVML_FUNCTIONS(TELLTALE_NVML_POINTER)
#undef TELLTALE_NVML_POINTER
};

class NvmlLibrary {
 public:
  /// What stood in the way: empty once devices can be read, of which there may be none. May take
  /// seconds, where the driver wakes the devices first.
  std::string Open(const std::string& path);

  bool loaded() const { return loaded_; }
  const NvmlFunctions& functions() const { return functions_; }
  /// By the number that the driver gives them; null for one that is lost already.
  const std::vector<nvml::Device>& devices() const { return devices_; }
  std::string DriverVersion() const;
  std::string NameOf(nvml::Device device) const;
  /// The device is partitioned.
  bool HasMig(nvml::Device device) const;

 private:
  bool loaded_ = false;
  NvmlFunctions functions_;
  std::vector<nvml::Device> devices_;
};

/// "the driver is not loaded".
std::string NvmlError(nvml::Return result);

}  // namespace telltale::collect
