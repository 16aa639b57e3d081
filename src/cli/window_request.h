// SPDX-License-Identifier: Apache-2.0
// Asks a run that goes on for a window of detail of its next steps: `telltale capture --steps`, and
// the button of the page.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"

namespace telltale::cli {

/// Body of the request `profile` (docs/formats/requests.md), JSON. `detail`: words with commas
/// between; empty: the default. kUsage.
Result<std::string> WindowBody(std::int64_t steps, const std::string& detail);

/// What POST /api/runs/ID/window does: `body` is {"steps": 5, "detail": "ops,kernels"}; writes the
/// request into the run and answers {"id": ...} without waiting for the agent. kUsage: the body;
/// kUnusable: the run does not go on; kIo.
Result<std::string> AskForWindow(const std::string& run, const std::string& body);

}  // namespace telltale::cli
