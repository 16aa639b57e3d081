// SPDX-License-Identifier: Apache-2.0
#include "read/run_steps.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "store/column_scan.h"

namespace telltale::read {
namespace {

constexpr std::string_view kModes[] = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};

}  // namespace

Result<std::vector<std::int64_t>> RunSteps(const std::filesystem::path& run, const Which& which,
                                           bool final, store::Salvage* salvage) {
  std::map<std::string, std::vector<std::int64_t>, std::less<>> by_mode;
  const store::ScanRequest request{
      .table = format::TableId::kSteps, .columns = {"step", "mode", "rank"}, .final = final};
  const auto take = [&](store::ScanPiece& piece) {
    std::vector<std::vector<std::int64_t>*> steps;
    for (const std::string_view mode : piece.columns[1].texts) {
      steps.push_back(&by_mode[std::string(mode)]);
    }
    const store::ScanColumn& numbers = piece.columns[0];
    if (!which.rank && piece.columns[1].constant && !numbers.constant) {
      std::vector<std::int64_t>& to = *steps[0];
      if (to.capacity() - to.size() < piece.rows) to.reserve(2 * (to.size() + piece.rows));
      to.insert(to.end(), numbers.ints.begin(), numbers.ints.end());
      return Status();
    }
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (which.rank && piece.columns[2].Int(i) != *which.rank) continue;
      steps[piece.columns[1].Code(i)]->push_back(numbers.Int(i));
    }
    return Status();
  };
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run, request, take, salvage));
  std::vector<std::int64_t> steps;
  if (!which.mode.empty()) {
    steps = std::move(by_mode[which.mode]);
  } else {
    for (const std::string_view mode : kModes) {
      const auto found = by_mode.find(mode);
      if (found == by_mode.end() || found->second.empty()) continue;
      steps = std::move(found->second);
      break;
    }
  }
  if (!std::is_sorted(steps.begin(), steps.end())) std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

}  // namespace telltale::read
