// SPDX-License-Identifier: Apache-2.0
// Of a finding that has opened: asks the agents to keep the spans of detail of the steps around it,
// which only they hold (docs/guide/windows.md, docs/formats/requests.md).
#pragma once
#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "rules/engine.h"

namespace telltale::watch {

/// Whether this revision of an incident asks for it: it is open, and medium or high.
bool WantsToKeep(const rules::Finding& finding);
/// Writes the request, or finds it written: its id is the incident's, whichever watcher asks.
/// `unix_ns`: now; `attempt`: of the run, now. kIo.
Status AskToKeep(const std::filesystem::path& run, const rules::Finding& finding,
                 std::int64_t unix_ns, std::uint32_t attempt);

}  // namespace telltale::watch
