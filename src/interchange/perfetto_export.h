// SPDX-License-Identifier: Apache-2.0
// A run as a Perfetto trace of track events: opens in ui.perfetto.dev and in trace_processor.
// docs/guide/export.md.
//
// Host threads are threads of their process, streams and counters tracks of their own; what
// overlaps without nesting goes to further rows. Times are Unix nanoseconds.
#pragma once
#include <filesystem>

#include "base/status.h"
#include "interchange/export_file.h"
#include "interchange/trace_rows.h"

namespace telltale::interchange {

Result<TraceExportReport> ExportPerfetto(const std::filesystem::path& run, ExportFile* file,
                                         const TraceExportOptions& options = {});

}  // namespace telltale::interchange
