// SPDX-License-Identifier: Apache-2.0
// What ran on devices: kernels, copies and fills by name, ranked.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kKernelView = {
    .name = "kernel",
    .what = "a kernel, a copy or a fill on a device",
    .keeps = [](const format::SliceRow&) { return false; },
    .list = true,
    .kernels_only = true,
};

}  // namespace telltale::analysis::profile
