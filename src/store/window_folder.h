// SPDX-License-Identifier: Apache-2.0
// Folders of a run that hold what windows of detail have recorded, imported after each: they come
// late and hold no record that rules read, so who asks for no slices is not told of them.
#pragma once
#include <string_view>

namespace telltale::store {

inline constexpr std::string_view kWindowFolderPrefix = "windows-";

}  // namespace telltale::store
