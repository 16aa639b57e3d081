// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/device_peaks.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace telltale::analysis::trace {
namespace {

constexpr std::array kPeaks = {
    // clang-format off: one line a device. name, FP32, TF32, FP16/BF16, FP8, GB/s
    DevicePeak{"P100", 10.6, 0, 21.2, 0, 732},
    DevicePeak{"V100-PCIE", 14, 0, 112, 0, 900},
    DevicePeak{"V100", 15.7, 0, 125, 0, 900},
    DevicePeak{"T4", 8.1, 0, 65, 0, 320},
    DevicePeak{"A10", 31.2, 62.5, 125, 0, 600},
    DevicePeak{"A30", 10.3, 82, 165, 0, 933},
    DevicePeak{"A40", 37.4, 74.8, 149.7, 0, 696},
    DevicePeak{"A100", 19.5, 156, 312, 0, 1555},
    DevicePeak{"A100-SXM4-80GB", 19.5, 156, 312, 0, 2039},
    DevicePeak{"A100 80GB PCIe", 19.5, 156, 312, 0, 1935},
    DevicePeak{"L4", 30.3, 60, 121, 242, 300},
    DevicePeak{"L40S", 91.6, 183, 362, 733, 864},
    DevicePeak{"H100 PCIe", 51, 378, 756, 1513, 2000},
    DevicePeak{"H100 NVL", 60, 417, 835, 1671, 3900},
    DevicePeak{"H100", 67, 494, 989, 1979, 3350},
    DevicePeak{"H200", 67, 494, 989, 1979, 4800},
    DevicePeak{"GH200", 67, 494, 989, 1979, 4000},
    DevicePeak{"B200", 75, 1125, 2250, 4500, 8000},
    DevicePeak{"RTX 3090", 35.6, 35.6, 71, 0, 936},
    DevicePeak{"RTX 4090", 82.6, 82.6, 165.2, 330.3, 1008},
    DevicePeak{"MI210", 22.6, 0, 181, 0, 1638},
    DevicePeak{"MI250", 45.3, 0, 362.1, 0, 3277},
    DevicePeak{"MI250X", 47.9, 0, 383, 0, 3277},
    DevicePeak{"MI300X", 163.4, 653.7, 1307.4, 2614.9, 5300},
    // clang-format on
};

bool SameLetter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

}  // namespace

std::span<const DevicePeak> DevicePeaks() { return kPeaks; }

const DevicePeak* FindPeak(std::string_view device) {
  const DevicePeak* best = nullptr;
  for (const DevicePeak& peak : kPeaks) {
    const auto at =
        std::search(device.begin(), device.end(), peak.name.begin(), peak.name.end(), SameLetter);
    if (at == device.end()) continue;
    if (best == nullptr || peak.name.size() > best->name.size()) best = &peak;
  }
  return best;
}

double PeakOf(const DevicePeak& peak, std::string_view precision) {
  double rate = peak.fp32;
  if (precision == "tf32") rate = peak.tf32;
  if (precision == "half") rate = peak.half;
  if (precision == "fp8") rate = peak.fp8;
  return rate > 0 ? rate : peak.fp32;
}

}  // namespace telltale::analysis::trace
