// SPDX-License-Identifier: Apache-2.0
// Small things that several rules need: medians, numbers as people read them, who trains.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::rules {

/// Of an even number: the mean of the middle two. 0 where there is none.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), values.begin() + half, values.end());
  const double upper = values[static_cast<std::size_t>(half)];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + half)) / 2;
}

/// Three significant digits, with an exponent where it is shorter: 0.0123, 4.1e-12, 17,200 is
/// 17200.
inline std::string Figure(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "−Inf";
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95 && magnitude < 99999.5) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

/// A duration in ms, three significant digits without an exponent.
inline std::string Millis(double ns) {
  const double ms = ns / 1e6;
  const double magnitude = std::abs(ms);
  return fmt::format("{:.{}f}", ms, magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2);
}

/// For evidence: enough digits to compute with, none that only look exact.
inline double Rounded(double value) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.5g}", value)) : value;
}

/// "rank 0", and the pid too where two processes have this rank (a sweep under one run).
inline std::string SubjectOfProcess(std::int32_t rank, std::int32_t pid, bool alone) {
  return alone ? fmt::format("rank {}", rank) : fmt::format("rank {}, pid {}", rank, pid);
}

}  // namespace telltale::rules
