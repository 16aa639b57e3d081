// SPDX-License-Identifier: Apache-2.0
// A run directory of our own making, with something of all that lies in one.
#pragma once
#include <filesystem>

namespace telltale::fuzz {

/// A finished run, ScratchRoot()/healthy: sealed segments and a journal of an agent, the watcher
/// and sampled stacks, a file of tensors, a window of detail that was imported and one that was
/// not, a request and a report. Made once; who changes it changes a copy.
const std::filesystem::path& HealthyRun();

}  // namespace telltale::fuzz
