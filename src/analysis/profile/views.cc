// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/view.h"

namespace telltale::analysis::profile {

const std::vector<const View*>& Views() {
  static const std::vector<const View*> all{&kOpView,   &kScopeView,  &kGraphView,
                                            &kCodeView, &kKernelView, &kModuleView};
  return all;
}

const View* FindView(std::string_view name) {
  for (const View* const view : Views()) {
    if (view->name == name) return view;
  }
  return nullptr;
}

}  // namespace telltale::analysis::profile
