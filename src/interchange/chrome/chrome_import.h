// SPDX-License-Identifier: Apache-2.0
// PyTorch's (Kineto's) traces, and any other in Chrome's JSON: docs/formats/chrome-trace.md.
#pragma once
#include <span>

#include "base/status.h"
#include "interchange/importer.h"

namespace telltale::interchange {

bool DetectChrome(const ImportFile& file);

/// One process or rank a file. Memory: 256 MiB of events, and five blocks of 8 MiB of text; a
/// trace that is larger is read twice.
Status ImportChrome(std::span<const ImportFile> files, const ImportLimits& limits, TraceSink* sink);

}  // namespace telltale::interchange
