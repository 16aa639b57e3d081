// SPDX-License-Identifier: Apache-2.0
// What of a step is our own doing and no fault of the training.
#pragma once
#include <algorithm>
#include <cstdint>

#include "format/records.gen.h"

namespace telltale::rules {

/// The step without the time that our own probe took in it: captures, the begin and end of a window
/// of detail. The probe keeps it in the phase other; what it took on further threads held up
/// whatever the step did most.
inline format::StepRow WithoutProbe(format::StepRow row) {
  std::int64_t left =
      std::clamp<std::int64_t>(row.probe_ns, 0, std::max<std::int64_t>(0, row.duration_ns));
  const auto take = [&](std::int64_t* phase) {
    const std::int64_t taken = std::clamp<std::int64_t>(*phase, 0, left);
    *phase -= taken;
    row.duration_ns -= taken;
    left -= taken;
  };
  take(&row.other_ns);
  while (left > 0) {
    std::int64_t* most = &row.data_wait_ns;
    for (std::int64_t* const phase :
         {&row.forward_ns, &row.backward_ns, &row.optimizer_ns, &row.comm_wait_ns}) {
      if (*phase > *most) most = phase;
    }
    if (*most <= 0) break;
    take(most);
  }
  row.probe_ns = 0;
  return row;
}

}  // namespace telltale::rules
