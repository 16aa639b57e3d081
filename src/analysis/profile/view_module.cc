// SPDX-License-Identifier: Apache-2.0
// The calls of modules and nothing between them.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kModuleView = {
    .name = "module",
    .what = "a call of a module",
    .keeps = [](const format::SliceRow& slice) { return slice.category == "module"; },
};

}  // namespace telltale::analysis::profile
