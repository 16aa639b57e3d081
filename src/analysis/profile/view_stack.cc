// SPDX-License-Identifier: Apache-2.0
// Everything that encloses the work, outermost first: what a flame graph shows.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kStackView = {
    .name = "stack",
    .what = "whatever encloses the work",
    .keeps =
        [](const format::SliceRow& slice) {
          return slice.category != "step" && slice.category != "memory" &&
                 slice.category != "sync" && slice.category != "runtime";
        },
    .kernel_leaves = true,
};

}  // namespace telltale::analysis::profile
