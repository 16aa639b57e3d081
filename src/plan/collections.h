// SPDX-License-Identifier: Apache-2.0
// The collections that need no definition: what a plan means by their names.
// Thread safety: stateless.
#pragma once
#include <span>
#include <string_view>

namespace telltale::plan {

struct BuiltIn {
  std::string_view name;
  /// Collections of adapters that belong to it, separated by spaces; its own name among them.
  std::string_view adapters;
  /// RE2 patterns for tensors that no adapter puts into a collection (save_tensor without one):
  /// such a tensor belongs to it where the first is found in its name and the second, if any, is
  /// not.
  std::string_view include, exclude;
  /// Weights and what trains them: the last that the governor gives up.
  bool core;
};

std::span<const BuiltIn> BuiltIns();
/// Null for a collection that is not built in. "optimizer_variables" is "optimizer_state".
const BuiltIn* FindBuiltIn(std::string_view name);

}  // namespace telltale::plan
