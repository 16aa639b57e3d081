// SPDX-License-Identifier: Apache-2.0
// What accelerators can do at most, by their makers' data sheets: dense rates, without sparsity.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace telltale::analysis::trace {

/// 10^12 operations a second, 0 where it has no such unit; 10^9 bytes a second.
struct DevicePeak {
  std::string_view name;  ///< Part of what drivers call it.
  double fp32 = 0;
  double tf32 = 0;
  double half = 0;  ///< FP16 and BF16 with sums in FP32.
  double fp8 = 0;
  double gbps = 0;
};
std::span<const DevicePeak> DevicePeaks();

/// The longest name that occurs in `device`, whatever its case; null where none does.
const DevicePeak* FindPeak(std::string_view device);
/// "fp32", "tf32", "half" or "fp8": the rate, and fp32's where it has none of its own.
double PeakOf(const DevicePeak& peak, std::string_view precision);

}  // namespace telltale::analysis::trace
