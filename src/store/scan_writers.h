// SPDX-License-Identifier: Apache-2.0
// RunReader::Scan of some writers of a run: the folders of the others are not opened.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::store {

/// As RunReader::Scan, in the order of `writers` (as ListWriters gives them). `final`: the run is
/// over.
Status ScanWriters(const std::filesystem::path& run, const std::vector<std::string>& writers,
                   bool final, std::uint32_t table_mask, const RunReader::Visitor& visit,
                   Salvage* salvage);

}  // namespace telltale::store
