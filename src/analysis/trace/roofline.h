// SPDX-License-Identifier: Apache-2.0
// How near matrix products come to what the device can do: rate of operations of each operator, the
// least intensity (operations a byte) that its shapes allow, and what a device of these peaks would
// reach at most (the roofline). And the model's share of the peak (MFU): operations of a step over
// its wall time and the peak.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

struct OpRate {
  std::string name;
  std::uint64_t count = 0;
  double flops = 0;
  double bytes = 0;   ///< At least moved, 0 where no shape tells.
  Sum device_ns = 0;  ///< Of the kernels that it and what nests in it launched.

  /// Operations a second; 0 where it launched nothing.
  double rate() const { return device_ns > 0 ? flops / (static_cast<double>(device_ns) / 1e9) : 0; }
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
};
struct Roofline {
  std::vector<OpRate> ops;  ///< By operations in sum.
  double flops = 0;
  Sum wall_ns = 0;  ///< Of the marked steps in scope, else from first slice to last.
};
/// Operators whose operations are known. One nested in another that counts is left out, so nothing
/// counts twice. REQUIRES: loaded with flops.
Roofline RooflineOf(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
