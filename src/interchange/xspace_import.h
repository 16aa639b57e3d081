// SPDX-License-Identifier: Apache-2.0
// XSpace (*.xplane.pb): what the profilers of TensorFlow, JAX and XLA write; fields as XProf's
// xplane.proto numbers them. docs/formats/imports.md.
#pragma once
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

bool LooksLikeXSpace(std::string_view bytes);

/// What is damaged is counted in `source`; kUnusable where nothing can be read.
Status ImportXSpace(std::string_view bytes, TraceSource* source);

}  // namespace telltale::interchange
