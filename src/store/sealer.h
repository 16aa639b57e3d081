// SPDX-License-Identifier: Apache-2.0
// Turns one finished journal into Parquet segments, one a table.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/journal_format.h"

namespace telltale::store {

/// Writes the segments of journal `number` of `folder`, each under a temporary name, synced,
/// renamed; then syncs the folder. What an earlier, interrupted call left is replaced. Returns one
/// record a segment; none where the journal holds no rows. Thread-safe, for the same journal
/// too: its bytes decide those of its segments.
Result<std::vector<SealedRecord>> SealJournal(const std::filesystem::path& folder,
                                              const std::string& writer, std::uint64_t number);

}  // namespace telltale::store
