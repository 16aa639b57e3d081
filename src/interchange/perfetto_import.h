// SPDX-License-Identifier: Apache-2.0
// Perfetto's own traces (protocol buffers): track events, that is slices, instants and counters.
// docs/formats/imports.md.
#pragma once
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

bool LooksLikePerfetto(std::string_view bytes);

/// What is damaged is counted in `source`; kUnusable where no packet can be read.
Status ImportPerfetto(std::string_view bytes, TraceSource* source);

}  // namespace telltale::interchange
