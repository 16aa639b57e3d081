// SPDX-License-Identifier: Apache-2.0
// A run that SageMaker Debugger recorded, as a run directory: statistics, values, shapes, scalars,
// steps, modes; its workers are ranks. docs/guide/interchange.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

struct ImportOptions {
  std::string telltale_version;
  /// Into one file of values at most so many bytes.
  std::uint64_t file_bytes = 256ULL << 20;
};

struct ImportReport {
  std::uint64_t steps = 0;  ///< Index files read.
  std::uint64_t workers = 0;
  std::uint64_t values = 0;      ///< Tensors stored in full.
  std::uint64_t statistics = 0;  ///< Rows.
  std::uint64_t scalars = 0;
  std::uint64_t shapes = 0;
  std::uint64_t texts = 0;          ///< Tensors of text, kept as events.
  std::uint64_t damaged = 0;        ///< Index files and records that could not be read.
  std::uint64_t unknown_types = 0;  ///< Tensors of a type that has no place here.
  std::vector<std::string> notes;   ///< A line each, not more than a hundred.
};

/// `folder`: what the hook's out_dir was. `run` is made, and is not there after an error;
/// Code::kUsage where it is there already. kUnusable: nothing of smdebug's is in `folder`; kIo.
Result<ImportReport> ImportSmdebug(const std::filesystem::path& folder,
                                   const std::filesystem::path& run,
                                   const ImportOptions& options = {});

}  // namespace telltale::interchange
