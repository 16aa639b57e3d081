// SPDX-License-Identifier: Apache-2.0
// One metric of many subjects over time, cell by cell, and the two ways in which it is sent: as
// JSON for programs, and as bytes for the page, which draws hundreds of thousands of cells at each
// zoom. docs/serve.md describes the bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace telltale::server {

struct HeatMap {
  std::vector<std::string> rows;  ///< Subjects.
  std::string unit;
  std::int64_t from_ns = 0;   ///< Begin of the first column.
  std::int64_t width_ns = 1;  ///< Of a column.
  std::size_t columns = 0;
  std::vector<float> values;  ///< Row by row; NaN where nothing was recorded.
};

std::string HeatJson(const HeatMap& map);

/// One byte a cell. kHeatNone: nothing was recorded.
inline constexpr std::uint8_t kHeatNone = 255;
inline constexpr std::uint32_t kHeatVersion = 1;
std::string HeatBytes(const HeatMap& map);

}  // namespace telltale::server
