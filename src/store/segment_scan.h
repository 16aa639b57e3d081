// SPDX-License-Identifier: Apache-2.0
// The part of a scan that reads one Parquet segment. Arrow stays inside the .cc file.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/status.h"
#include "store/column_scan.h"

namespace telltale::store {

/// Calls `visit` with the rows wanted of the segment at `path`; returns how many rows it holds.
/// Columns it lacks are zero. Code::kUnusable: unreadable, damaged or none of ours; then nothing of
/// the row group concerned, and of those after it, was given.
Result<std::uint64_t> ScanSegment(const std::filesystem::path& path, std::string_view writer,
                                  const ScanRequest& request, const ScanVisitor& visit);

}  // namespace telltale::store
