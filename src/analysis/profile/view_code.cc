// SPDX-License-Identifier: Apache-2.0
// The lines of Python that led to the work.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kCodeView = {
    .name = "code",
    .what = "a line of Python",
    .keeps = [](const format::SliceRow& slice) { return slice.category == "python"; },
    .adopts_operators = true,
};

}  // namespace telltale::analysis::profile
