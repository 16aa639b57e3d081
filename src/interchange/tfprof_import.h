// SPDX-License-Identifier: Apache-2.0
// tfprof's ProfileProto: the operators of a graph with when each ran in the steps that were traced.
// docs/formats/imports.md.
#pragma once
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

bool LooksLikeTfprof(std::string_view bytes);

/// What is damaged is counted in `source`; kUnusable where nothing can be read.
Status ImportTfprof(std::string_view bytes, TraceSource* source);

}  // namespace telltale::interchange
