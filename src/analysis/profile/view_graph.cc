// SPDX-License-Identifier: Apache-2.0
// Which operator led to which: by calls, and from a forward operator to its backward.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kGraphView = {
    .name = "graph",
    .what = "an operator below the one that called it, or whose backward it is",
    .keeps =
        [](const format::SliceRow& slice) {
          return slice.category == "op" || slice.category == "comm";
        },
    .backward_below_forward = true,
};

}  // namespace telltale::analysis::profile
