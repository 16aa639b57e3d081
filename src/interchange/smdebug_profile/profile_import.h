// SPDX-License-Identifier: Apache-2.0
// Imports what SageMaker Debugger's profiler leaves: whole output folders, or files of it by
// themselves; and Horovod's timelines. docs/formats/imports.md.
#pragma once
#include <span>

#include "interchange/importer.h"

namespace telltale::interchange {

bool DetectSmdebugProfile(const ImportFile& file);
Status ImportSmdebugProfile(std::span<const ImportFile> files, const ImportLimits& limits,
                            TraceSink* sink);

bool DetectHorovod(const ImportFile& file);
Status ImportHorovod(std::span<const ImportFile> files, const ImportLimits& limits,
                     TraceSink* sink);

}  // namespace telltale::interchange
