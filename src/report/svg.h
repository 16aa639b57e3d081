// SPDX-License-Identifier: Apache-2.0
// Charts of the report, as SVG text: no script, colours by the page's tokens, each with a sentence
// for those who do not see it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/columns.h"
#include "analysis/quantiles.h"

namespace telltale::report {

/// For text and attribute values; what base/printable.h names and broken UTF-8 become U+FFFD.
std::string Escape(std::string_view text);

inline constexpr int kPageWidth = 816;

/// CSS tokens of the six phases, in the order of analysis::kPhases.
inline constexpr std::array<std::string_view, 6> kPhaseTokens = {"var(--p-data)", "var(--p-comm)",
                                                                 "var(--p-fwd)",  "var(--p-bwd)",
                                                                 "var(--p-opt)",  "var(--p-other)"};

struct Marker {
  std::int64_t x = 0;
  std::string label;
};

/// Median as a line, min to max as a band, over steps. Values above the cut are marked with their
/// value; the cut is where 98 % of the columns' maxima fit.
struct LineChart {
  const analysis::Columns* series = nullptr;
  const analysis::Columns* dots = nullptr;  ///< A second series as dots, may be null.
  std::string dots_label;
  std::vector<Marker> markers;
  std::string (*label)(double value) = nullptr;
  std::string x_name;  ///< "step"
  bool zero_based = true;
  bool cut = true;
  int width = kPageWidth;
  int height = 150;
  std::string sentence;
};
std::string Draw(const LineChart& chart);

struct PhaseBar {
  std::string name;
  std::array<double, 6> ns{};
};
/// Horizontal bars on one scale, values in ms where they fit.
std::string DrawPhaseBars(const std::vector<PhaseBar>& bars, const std::string& sentence);

/// One column a step, newest at the right.
std::string DrawLastSteps(const std::vector<std::array<double, 6>>& steps_ns, std::int64_t first,
                          std::int64_t last, const std::string& sentence);

struct Segment {
  std::string name, label;
  double seconds = 0;
  std::string_view token;
};
std::string DrawSegments(const std::vector<Segment>& segments, const std::string& sentence);

std::string DrawHistogram(const analysis::Quantiles& values, std::string (*label)(double),
                          int width, const std::string& sentence);

/// Rows of values 0 to 100 over time, five stops of the cool scale.
struct HeatRow {
  std::string name;
  const analysis::Columns* values = nullptr;
};
std::string DrawHeat(const std::vector<HeatRow>& rows, std::int64_t begin_ns, std::int64_t end_ns,
                     const std::string& sentence);

/// What a box plot shows of one device, 0 to 100 percent; p05 and p95 are dots.
struct BoxRow {
  std::string name;
  double low = 0, p25 = 0, p50 = 0, p75 = 0, high = 0, p05 = 0, p95 = 0;
};
std::string DrawBoxes(const std::vector<BoxRow>& rows, const std::string& sentence);

/// Bars of equal width; `from` and `to` label the ends.
std::string DrawBins(const std::vector<double>& bins, const std::string& from,
                     const std::string& to, int width, const std::string& sentence);

}  // namespace telltale::report
