// SPDX-License-Identifier: Apache-2.0
// Scalars and histograms of a run as event files that TensorBoard reads: a folder a mode and rank.
// docs/guide/interchange.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::interchange {

struct ExportOptions {
  /// The mean, the standard deviation, the extremes and the counts of NaN and infinity too, as
  /// scalars.
  bool statistics = false;
};

struct ExportReport {
  std::uint64_t scalars = 0;
  std::uint64_t histograms = 0;
  std::uint64_t empty_histograms = 0;        ///< Of tensors without a finite element: left out.
  std::vector<std::filesystem::path> files;  ///< Those written.
  store::Salvage salvage;                    ///< What of the run could not be read.
};

/// Code::kUsage: a file of this export is in `folder` already; kUnusable: no such run; kIo.
Result<ExportReport> ExportTensorBoard(const std::filesystem::path& run,
                                       const std::filesystem::path& folder,
                                       const ExportOptions& options = {});

}  // namespace telltale::interchange
