// SPDX-License-Identifier: Apache-2.0
// The slices of a run for speedscope.app: a profile of begins and ends for each thread and stream.
// docs/guide/export.md.
//
// Memory: that of the options, and each distinct name once.
#pragma once
#include <filesystem>
#include <string>

#include "base/status.h"
#include "interchange/export_file.h"
#include "interchange/trace_rows.h"

namespace telltale::interchange {

/// Times are nanoseconds after the first slice. `name` is what the page calls it.
Result<TraceExportReport> ExportSpeedscope(const std::filesystem::path& run,
                                           const std::string& name, ExportFile* file,
                                           const TraceExportOptions& options = {});

}  // namespace telltale::interchange
