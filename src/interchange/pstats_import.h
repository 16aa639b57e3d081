// SPDX-License-Identifier: Apache-2.0
// Statistics of cProfile as slices: they have no times, so the functions stand one after the other,
// each for the time spent in itself. docs/formats/imports.md.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

struct PstatsPlace {
  std::int64_t begin_ns = 0;  ///< Where the first function stands.
  std::int64_t step = -1;
};

Status ImportPstats(std::string_view bytes, const PstatsPlace& place, TraceSource* source);

}  // namespace telltale::interchange
