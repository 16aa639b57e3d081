// SPDX-License-Identifier: Apache-2.0
// What opens a run directory that nobody vouches for.
#pragma once
#include <filesystem>

namespace telltale::fuzz {

/// check, the listing and verify.
void CheckRun(const std::filesystem::path& run);
/// The metrics that are exported.
void MeasureRun(const std::filesystem::path& run);
/// The page and its report, as the server makes them.
void ServeRun(const std::filesystem::path& run);
/// Tables by `query`, and the values of each tensor.
void QueryRun(const std::filesystem::path& run);
/// Timelines, stacks and tables as files for others, at ScratchRoot()/exported, which is removed.
void ExportRun(const std::filesystem::path& run);
/// The windows that are not imported yet, and then the report: what writes into the run.
void WriteIntoRun(const std::filesystem::path& run);

}  // namespace telltale::fuzz
