// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of matrix products from the shapes that a profiler recorded, counted as
// torch.profiler's with_flops does: a multiplication and an addition are two. Products alone: they
// are nearly all of a training's, and no other operator's count follows from its shapes alone.
#pragma once
#include <string_view>

namespace telltale::analysis::trace {

struct ShapeCost {
  double flops = 0;
  double bytes = 0;  ///< Each operand read and the result written once, by "Input type".
};

/// Of aten::mm, addmm, bmm, baddbmm (2·m·n·k, by batch) and of aten::conv2d where "Concrete Inputs"
/// say stride, padding and dilation. Zero where the operator is another or `args` do not say its
/// shapes.
ShapeCost ShapeCostOf(std::string_view name, std::string_view args);

}  // namespace telltale::analysis::trace
