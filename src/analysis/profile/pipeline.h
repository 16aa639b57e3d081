// SPDX-License-Identifier: Apache-2.0
// What is shown of a tree, in tfprof's order:
//   1. the view's tree is there;
//   2. account_type_regexes choose the nodes that count; their statistics add up to those above
//   them;
//   3. start_name_regexes choose the nodes to begin with, trim_name_regexes leave out a node and
//   all
//      below it, show_name_regexes, hide_name_regexes, min_* and max_depth hide: the children of a
//      hidden node hang below the nearest that is shown, and sums stay what they were, unless
//      account_displayed_op_only, which adds up again what is shown alone;
//   4. siblings are sorted by order_by.
// In a list max_depth is its length, and the total of a line is that of it and of all below it.
// Sums over all below, not a node's own, are what min_* and order_by look at (in a list: its own).
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

#include "analysis/profile/options.h"
#include "analysis/profile/tree.h"

namespace telltale::analysis::profile {

struct Shown {
  NodeId id = kRoot;
  bool account = false;  ///< It counts by itself; else only what is below it.
  Stats total;
  std::vector<Shown> children;  ///< Of a list's root: the lines.
};

/// The root with what is shown below it.
Shown Choose(const Tree& tree, bool list, const Options& options);

}  // namespace telltale::analysis::profile
