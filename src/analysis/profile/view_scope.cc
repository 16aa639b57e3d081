// SPDX-License-Identifier: Apache-2.0
// Where in the model and in the marked ranges: modules, annotations, and the operators that ran in
// them; and the weights by their names.
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const View kScopeView = {
    .name = "scope",
    .what = "a module, a marked range, an operator, or a weight by its name",
    .keeps =
        [](const format::SliceRow& slice) {
          return slice.category == "annotation" || slice.category == "module" ||
                 slice.category == "op" || slice.category == "comm" || slice.category == "data" ||
                 slice.category == "compile" || slice.category == "gc" || slice.category == "io";
        },
    .parameters = true,
};

}  // namespace telltale::analysis::profile
