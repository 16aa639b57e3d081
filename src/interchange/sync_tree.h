// SPDX-License-Identifier: Apache-2.0
// Makes a folder that was written without a sync durable as a whole. Thread safety: stateless.
#pragma once
#include <filesystem>

#include "base/status.h"

namespace telltale::interchange {

/// Syncs each file below `folder`, then each folder, the inner ones first. kIo.
Status SyncTree(const std::filesystem::path& folder);

}  // namespace telltale::interchange
