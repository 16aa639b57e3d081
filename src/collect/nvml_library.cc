// SPDX-License-Identifier: Apache-2.0
#include "collect/nvml_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace telltale::collect {
namespace {

constexpr unsigned kMaxDevices = 64;

}  // namespace

std::string NvmlError(nvml::Return result) {
  switch (result) {
    case nvml::kNotSupported:
      return "not supported";
    case nvml::kNoPermission:
      return "no permission";
    case nvml::kDriverNotLoaded:
      return "the driver is not loaded";
    case 12:
      return "the driver's library lacks a function";
    case nvml::kGpuIsLost:
      return "the device is lost: it does not answer on the bus";
    case nvml::kResetRequired:
      return "the device must be reset";
    case 18:
      return "library and driver are of different versions";
    default:
      return fmt::format("error {} of NVML", result);
  }
}

std::string NvmlLibrary::Open(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("no {}", path);
  loaded_ = true;
#define TELLTALE_NVML_FIND(name, symbol, parameters) \
  functions_.name = reinterpret_cast<decltype(functions_.name)>(::dlsym(library, symbol));
  TELLTALE_NVML_FUNCTIONS(TELLTALE_NVML_FIND)
#undef TELLTALE_NVML_FIND
  const NvmlFunctions& f = functions_;
  if (f.init == nullptr || f.count == nullptr || f.device == nullptr) {
    return fmt::format("{} is not NVIDIA's, or too old", path);
  }
  if (const nvml::Return result = f.init(); result != nvml::kSuccess) return NvmlError(result);
  unsigned count = 0;
  if (const nvml::Return result = f.count(&count); result != nvml::kSuccess) {
    return NvmlError(result);
  }
  devices_.resize(std::min(count, kMaxDevices));
  for (unsigned i = 0; i < devices_.size(); ++i) {
    if (f.device(i, &devices_[i]) != nvml::kSuccess) devices_[i] = nullptr;
  }
  return {};
}

std::string NvmlLibrary::DriverVersion() const {
  std::array<char, 96> text{};
  if (functions_.driver_version == nullptr ||
      functions_.driver_version(text.data(), text.size() - 1) != nvml::kSuccess) {
    return {};
  }
  return text.data();
}

std::string NvmlLibrary::NameOf(nvml::Device device) const {
  std::array<char, 128> text{};
  if (device == nullptr || functions_.name == nullptr ||
      functions_.name(device, text.data(), text.size() - 1) != nvml::kSuccess) {
    return {};
  }
  return text.data();
}

bool NvmlLibrary::HasMig(nvml::Device device) const {
  unsigned now = 0, pending = 0;
  return device != nullptr && functions_.mig_mode != nullptr &&
         functions_.mig_mode(device, &now, &pending) == nvml::kSuccess && now == 1;
}

}  // namespace telltale::collect
