// SPDX-License-Identifier: Apache-2.0
// TensorFlow's RunMetadata and StepStats as binary protocol buffers: one run of a graph, operator
// by operator, on each device. docs/formats/imports.md.
#pragma once
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

bool LooksLikeRunMetadata(std::string_view bytes);
bool LooksLikeStepStats(std::string_view bytes);

/// Of either message. What is damaged is counted in `source`; kUnusable where nothing can be read.
Status ImportStepStats(std::string_view bytes, TraceSource* source);

}  // namespace telltale::interchange
