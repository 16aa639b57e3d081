// SPDX-License-Identifier: Apache-2.0
// What of a step is our own doing and no fault of the training.
#pragma once
#include <algorithm>
#include <cstdint>

#include "format/records.gen.h"

namespace telltale::rules {

/// The step without the time that our own probe took in it: that lies in the phase other (weights
/// and gradients) and in forward (outputs), so it is taken off there first.
inline format::StepRow WithoutProbe(format::StepRow row) {
  std::int64_t left =
      std::clamp<std::int64_t>(row.probe_ns, 0, std::max<std::int64_t>(0, row.duration_ns));
  for (std::int64_t* const phase :
       {&row.other_ns, &row.forward_ns, &row.backward_ns, &row.optimizer_ns}) {
    const std::int64_t taken = std::clamp<std::int64_t>(*phase, 0, left);
    *phase -= taken;
    row.duration_ns -= taken;
    left -= taken;
  }
  return row;
}

}  // namespace telltale::rules
