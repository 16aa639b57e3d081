// SPDX-License-Identifier: Apache-2.0
// The views of a profile: which slices are nodes and where they hang. One file a view; views.cc
// lists them.
#pragma once
#include <string_view>
#include <vector>

#include "format/records.gen.h"

namespace telltale::analysis::profile {

struct View {
  std::string_view name;
  std::string_view what;  ///< For the help: what a node is.
  /// Host slices that are nodes; what lies between them counts with the nearest that encloses it.
  bool (*keeps)(const format::SliceRow& slice) = nullptr;
  /// One list of names, not a tree.
  bool list = false;
  /// A kernel is a node of its own, below what launched it.
  bool kernel_leaves = false;
  /// Kernels are the nodes, and nothing else.
  bool kernels_only = false;
  /// A backward operator hangs below its forward operator.
  bool backward_below_forward = false;
  /// Operators that no node encloses count with the Python stack that they carry, or with that of
  /// their forward operator.
  bool adopts_operators = false;
  /// The run's weights are nodes.
  bool parameters = false;
};

extern const View kOpView;
extern const View kScopeView;
extern const View kGraphView;
extern const View kCodeView;
extern const View kKernelView;
extern const View kModuleView;
/// Every level that a recording has, kernels as leaves: for flame graphs, not for --view.
extern const View kStackView;

/// Those of --view.
const std::vector<const View*>& Views();
/// nullptr where there is none of that name.
const View* FindView(std::string_view name);

}  // namespace telltale::analysis::profile
