// SPDX-License-Identifier: Apache-2.0
// The weights and biases that a run recorded, as nodes below the parts of their names
// (layer1.0.conv1.weight). Their types are Variable, _trainable_variables, the collection and the
// dtype, so that tfprof's defaults find them.
#pragma once
#include <filesystem>

#include "analysis/profile/tree.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::analysis::profile {

/// `values`: the newest statistics of each as the node's value.
Status AddParameters(const std::filesystem::path& run, bool values, Tree* tree,
                     store::Salvage* salvage);

}  // namespace telltale::analysis::profile
