// SPDX-License-Identifier: Apache-2.0
// The steps that a run took, from two or three columns of its table of steps.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "read/tensor.h"
#include "store/reader.h"

namespace telltale::read {

/// Ascending, each once; none where no step was recorded (in the mode that `which` names).
Result<std::vector<std::int64_t>> RunSteps(const std::filesystem::path& run, const Which& which,
                                           bool final, store::Salvage* salvage);

}  // namespace telltale::read
