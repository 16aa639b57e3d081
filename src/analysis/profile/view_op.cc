// SPDX-License-Identifier: Apache-2.0
// Operators by type: those of one name are one line, ranked.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kOpView = {
    .name = "op",
    .what = "a type of operator",
    .keeps =
        [](const format::SliceRow& slice) {
          return slice.category == "op" || slice.category == "comm";
        },
    .list = true,
};

}  // namespace telltale::analysis::profile
