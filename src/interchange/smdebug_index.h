// SPDX-License-Identifier: Apache-2.0
// What lies in a folder that SageMaker Debugger wrote: its index files, its collections. Paths,
// JSON and names only; values are in smdebug_import.cc.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

/// One index file: one step of one worker.
struct IndexFile {
  std::int64_t step = 0;  ///< Global step.
  std::string worker;
  std::filesystem::path path;
};
/// By (step, worker). Code::kUnusable: no folder, or no index in it.
Result<std::vector<IndexFile>> ListIndex(const std::filesystem::path& folder);

struct IndexedTensor {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct IndexedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};
struct Index {
  std::string mode;
  std::int64_t mode_step = 0;
  std::string event_file;  ///< Relative to the folder; empty where only shapes were saved.
  std::vector<IndexedTensor> tensors;
  std::vector<IndexedShape> shapes;
};
/// Code::kPartial where the file cannot be read or is none.
Result<Index> ReadIndex(const std::filesystem::path& path);

/// The collection of each tensor that the folder's JSON names: a built-in one before a user's,
/// before `default` and `all`.
std::map<std::string, std::string, std::less<>> ReadCollections(
    const std::filesystem::path& folder);

/// "smdebug/reductions/abs_mean/conv1.weight" → abs_mean of conv1.weight.
struct Reduction {
  std::string_view reduction;  ///< "mean", "abs_mean", "l1", ...
  std::string_view tensor;
};
std::optional<Reduction> ParseReduction(std::string_view tag);

}  // namespace telltale::interchange
