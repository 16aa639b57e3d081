// SPDX-License-Identifier: Apache-2.0
// Which tensors a run has records of, and what of each.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::read {

/// What there may be of a tensor at a step, as TT_RECORDED_ of telltale/read.h.
inline constexpr std::uint32_t kValues = 1;
inline constexpr std::uint32_t kStatistics = 2;
inline constexpr std::uint32_t kHistograms = 4;
inline constexpr std::uint32_t kAnything = kValues | kStatistics | kHistograms;

struct TensorSummary {
  std::string name;
  std::set<std::string> collections;
  std::set<std::string> dtypes;  ///< "float32", ...
  std::set<std::string> shapes;  ///< As JSON lists; empty where only statistics were taken.
  std::set<std::int32_t> ranks;
  /// Steps by mode, over all ranks. A step that came again after a restart counts once.
  std::map<std::string, std::uint64_t> steps;
  std::uint64_t values = 0;  ///< Records of each kind.
  std::uint64_t statistics = 0;
  std::uint64_t histograms = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

/// By name. `pattern`: as a shell's, over the whole name (* ? [abc]), or a name; empty: all.
Result<std::vector<TensorSummary>> ListTensors(const std::filesystem::path& run,
                                               const std::string& pattern, bool final,
                                               store::Salvage* salvage);

}  // namespace telltale::read
