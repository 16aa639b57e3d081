// SPDX-License-Identifier: Apache-2.0
// A run as Chrome trace JSON, as PyTorch's profiler writes it: chrome://tracing, Perfetto and what
// reads Kineto's traces open it, and `telltale import` too. docs/guide/export.md.
#pragma once
#include <filesystem>

#include "base/status.h"
#include "interchange/export_file.h"
#include "interchange/trace_rows.h"

namespace telltale::interchange {

/// Times are microseconds after `baseTimeNanoseconds` (Unix ns).
Result<TraceExportReport> ExportChrome(const std::filesystem::path& run, ExportFile* file,
                                       const TraceExportOptions& options = {});

}  // namespace telltale::interchange
