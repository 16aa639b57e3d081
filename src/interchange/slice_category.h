// SPDX-License-Identifier: Apache-2.0
// The table's category of a slice, by the category that its source wrote.
#pragma once
#include <string_view>

namespace telltale::interchange {

/// Of our own words, and of PyTorch's ("cpu_op"); "annotation" of all others.
std::string_view SliceCategoryOf(std::string_view kind);

}  // namespace telltale::interchange
