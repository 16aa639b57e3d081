// SPDX-License-Identifier: Apache-2.0
#include "collect/gpu_inventory.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "collect/asked_thread.h"
#include "collect/nvml_library.h"

namespace telltale::collect {
namespace {

GpuInventory AskLibrary(const std::string& path) {
  NvmlLibrary library;
  GpuInventory found;
  found.problem = library.Open(path);
  found.library = library.loaded();
  if (!found.problem.empty()) return found;
  found.driver = library.DriverVersion();
  const NvmlFunctions& f = library.functions();
  for (const nvml::Device device : library.devices()) {
    GpuInventory::Gpu gpu;
    gpu.name = library.NameOf(device);
    gpu.mig = library.HasMig(device);
    nvml::MemoryV2 second{};
    second.version = nvml::kMemoryV2;
    nvml::Memory first{};
    if (device != nullptr && f.memory_v2 != nullptr &&
        f.memory_v2(device, &second) == nvml::kSuccess) {
      gpu.memory_bytes = static_cast<double>(second.total);
    } else if (device != nullptr && f.memory != nullptr &&
               f.memory(device, &first) == nvml::kSuccess) {
      gpu.memory_bytes = static_cast<double>(first.total);
    }
    nvml::GpmSupport support{nvml::kGpmVersion, 0};
    gpu.counters = device != nullptr && f.gpm_support != nullptr &&
                   f.gpm_support(device, &support) == nvml::kSuccess && support.supported != 0;
    found.gpus.push_back(std::move(gpu));
  }
  return found;
}

}  // namespace

GpuInventory FindGpus(const std::string& library, std::chrono::nanoseconds patience) {
  const auto found = std::make_shared<GpuInventory>();
  AskedThread thread([found, library] { *found = AskLibrary(library); });
  if (thread.Ask() && thread.Await(patience)) return *found;
  GpuInventory none;
  none.library = true;
  none.problem = fmt::format("the driver has not answered for {} s",
                             std::chrono::duration_cast<std::chrono::seconds>(patience).count());
  return none;
}

}  // namespace telltale::collect
