// SPDX-License-Identifier: Apache-2.0
#include "server/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "server/json_text.h"

namespace telltale::server {
namespace {

constexpr std::string_view kMagic = "TTHM";
constexpr double kSteps = kHeatNone - 1;  ///< Of a byte, from the lowest value to the highest.

/// A cell as text. Hundreds of thousands are written at a time, most of them shares: those have one
/// digit after the point.
void AppendCell(std::string* out, float value, bool percent) {
  if (!std::isfinite(value)) {
    out->append("null");
  } else if (percent && value >= 0 && value < 1e6F) {
    const long tenths = std::lround(value * 10);
    const fmt::format_int whole(tenths / 10);
    out->append(whole.data(), whole.size());
    if (tenths % 10 == 0) return;
    out->push_back('.');
    out->push_back(static_cast<char>('0' + tenths % 10));
  } else {
    fmt::format_to(std::back_inserter(*out), "{:.4g}", value);
  }
}

void AppendRows(std::string* out, const HeatMap& map) {
  out->append("\"rows\":[");
  for (std::size_t i = 0; i < map.rows.size(); ++i) {
    if (i > 0) out->push_back(',');
    out->append(Quoted(map.rows[i]));
  }
  out->push_back(']');
}

void AppendLittleEndian(std::string* out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>((value >> shift) & 0xFF));
  }
}

}  // namespace

std::string HeatJson(const HeatMap& map) {
  std::string out = "{";
  AppendRows(&out, map);
  std::vector<std::int64_t> t;
  for (std::size_t i = 0; i < map.columns; ++i) {
    t.push_back(map.from_ns + static_cast<std::int64_t>(i) * map.width_ns);
  }
  out += ',';
  AppendArray(&out, "t", t);
  out += ",\"values\":[";
  const bool percent = map.unit == "percent";
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    out += row == 0 ? "[" : ",[";
    for (std::size_t column = 0; column < map.columns; ++column) {
      if (column > 0) out += ',';
      AppendCell(&out, map.values[row * map.columns + column], percent);
    }
    out += ']';
  }
  out += fmt::format("],\"unit\":{}}}", Quoted(map.unit));
  return out;
}

std::string HeatBytes(const HeatMap& map) {
  // Shares have the same scale in every window; all else reaches as far as its values do.
  const bool percent = map.unit == "percent";
  float low = 0;
  float high = percent ? 100 : 0;
  for (const float value : map.values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string head = "{";
  AppendRows(&head, map);
  fmt::format_to(std::back_inserter(head), ",\"unit\":{},\"from\":{},\"width\":{},\"columns\":{}",
                 Quoted(map.unit), map.from_ns, map.width_ns, map.columns);
  fmt::format_to(std::back_inserter(head), ",\"low\":{},\"high\":{}}}", low, high);

  std::string out;
  out.reserve(12 + head.size() + map.values.size());
  out += kMagic;
  AppendLittleEndian(&out, kHeatVersion);
  AppendLittleEndian(&out, static_cast<std::uint32_t>(head.size()));
  out += head;
  // Doubles: the distance of two floats may be no float.
  const double scale = high > low ? kSteps / (double{high} - low) : 0;
  // With a half, so that cutting rounds: no cell is below `low`.
  const double base = 0.5 - low * scale;
  for (const float value : map.values) {
    const bool known = std::isfinite(value);
    const auto cell = known ? static_cast<std::uint8_t>(value * scale + base) : kHeatNone;
    out.push_back(static_cast<char>(cell));
  }
  return out;
}

}  // namespace telltale::server
