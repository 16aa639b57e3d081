// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/printable.h"
#include "base/saturate.h"
#include "base/utf8.h"
#include "report/append.h"
#include "report/text.h"

namespace telltale::report {
namespace {

std::string Open(double width, double height, const std::string& sentence) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" "
      "aria-label=\"{2}\"><title>{2}</title>",
      width, height, Escape(sentence));
}

constexpr double kCharacter = 6;  ///< Pixels, of the report's 11 px font.

/// At most so many characters, the last an ellipsis where there were more.
std::string Shorten(std::string_view text, double characters) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(1, Utf8Length(text));
    characters -= 1;
    if (characters < 1 && length < text.size()) return out + "…";
    out += text.substr(0, length);
    text.remove_prefix(length);
  }
  return out;
}

/// Room for a text in pixels.
double TextWidth(std::string_view text) {
  return kCharacter * static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
           return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
         }));
}

void Text(std::string* out, double x, double y, std::string_view text, std::string_view anchor = "",
          std::string_view klass = "") {
  Add(out, "<text x=\"{:.1f}\" y=\"{:.1f}\"", x, y);
  if (!anchor.empty()) Add(out, " text-anchor=\"{}\"", anchor);
  if (!klass.empty()) Add(out, " class=\"{}\"", klass);
  Add(out, ">{}</text>", Escape(text));
}

/// The largest of 1, 2, 5 × 10ⁿ that is at most v.
double Nice(double v) {
  if (!(v > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(v)));
  const double lead = v / power;
  return power * (lead >= 5 ? 5 : (lead >= 2 ? 2 : 1));
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : WithoutControls(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Draw(const LineChart& chart) {
  const analysis::Columns& series = *chart.series;
  std::vector<double> highs;
  double low = INFINITY;
  double high = -INFINITY;
  for (const analysis::Column& c : series.columns()) {
    if (c.count == 0) continue;
    highs.push_back(c.max);
    low = std::min(low, c.min);
    high = std::max(high, c.max);
  }
  if (chart.dots != nullptr) {
    for (const analysis::Column& c : chart.dots->columns()) {
      if (c.count == 0) continue;
      low = std::min(low, c.min);
      high = std::max(high, c.max);
    }
  }
  if (highs.empty()) return {};
  std::sort(highs.begin(), highs.end());
  double top = high;
  if (chart.cut) {
    const double most =
        highs[static_cast<std::size_t>(0.96 * static_cast<double>(highs.size() - 1))];
    // The first values are no outliers: a loss begins high.
    const double usual = std::max(most, chart.zero_based ? most : series.columns().front().max);
    if (high > 1.6 * usual) top = usual * 1.25;
  }
  double bottom = chart.zero_based ? std::min(0.0, low) : low;
  if (!(top > bottom)) top = bottom + std::max(1e-12, std::abs(bottom) * 0.1);
  if (!chart.zero_based) {
    const double margin = (top - bottom) * 0.05;
    top += margin;
    bottom -= margin;
  } else {
    top *= 1.05;
  }

  const double left = 62;
  const double right = chart.width - 58.0;
  // Labels of markers have rows of their own above the plot: never over the line.
  const auto labels =
      std::count_if(chart.markers.begin(), chart.markers.end(),
                    [&](const Marker& m) { return m.x > series.begin() && m.x <= series.last(); });
  const double room = 14.0 * static_cast<double>(std::min<std::ptrdiff_t>(3, labels));
  const double height = chart.height + room;
  const double upper = 18 + room;
  const double lower = height - 22.0;
  const std::int64_t x0 = series.begin();
  const std::int64_t x1 = std::max(series.last(), x0 + 1);
  const auto at_x = [&](double x) {
    return left + (x - static_cast<double>(x0)) / static_cast<double>(x1 - x0) * (right - left);
  };
  const auto at_y = [&](double y) {
    return lower - (std::clamp(y, bottom, top) - bottom) / (top - bottom) * (lower - upper);
  };
  std::string out = Open(chart.width, height, chart.sentence);

  std::vector<double> ticks;
  if (chart.zero_based) {
    ticks = {bottom, Nice(top * 0.55), Nice(top)};
    if (ticks[2] - ticks[1] < 0.15 * top) ticks.erase(ticks.begin() + 1);
  } else {
    ticks = {low, std::min(top, high)};
  }
  // A round tick has no digits to spare: 50 ms, not 50.0 ms.
  const auto tick_label = [&](double value) -> std::string {
    if (value == 0) return "0";
    std::string text = chart.label(value);
    const auto point = text.find('.');
    if (point == std::string::npos) return text;
    auto end = text.find_first_not_of("0123456789", point + 1);
    if (end == std::string::npos) end = text.size();
    auto begin = end;
    while (begin > point + 1 && text[begin - 1] == '0') --begin;
    if (begin == point + 1) --begin;
    return text.erase(begin, end - begin);
  };
  for (double tick : ticks) {
    const double y = at_y(tick);
    Add(&out, "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"var(--line)\"/>", left, y, right);
    Text(&out, left - 6, y + 4, chart.zero_based ? tick_label(tick) : chart.label(tick), "end");
  }
  Text(&out, left, height - 6, fmt::format("{} {}", chart.x_name, Thousands(x0)));
  if (x1 - x0 > 4) {
    const auto middle = SaturatingCast(
        Nice(std::floor(static_cast<double>(x0) + 0.6 * static_cast<double>(x1 - x0))));
    const double x = at_x(static_cast<double>(middle));
    if (x > left + 90 && x < right - 70) {
      Text(&out, x, height - 6, Thousands(middle), "middle");
    }
  }
  Text(&out, right, height - 6, Thousands(x1), "end");

  // Columns that have no value break the line: a gap is never joined.
  std::string band_up;
  std::string band_down;
  std::string bands;
  std::string line;
  std::string cuts;
  bool pen = false;
  double last_median = 0;
  double last_cut_x = -1e9;
  const auto end_band = [&] {
    if (!band_up.empty()) bands += "M" + band_up.substr(1) + band_down + "Z";
    band_up.clear();
    band_down.clear();
    pen = false;
  };
  for (std::size_t i = 0; i < series.columns().size(); ++i) {
    const analysis::Column& c = series.columns()[i];
    if (c.count == 0) {
      // A column narrower than the spacing of points is empty by nature.
      if (series.width() > 1 || i + 1 >= series.columns().size()) end_band();
      continue;
    }
    const double center = static_cast<double>(x0 + static_cast<std::int64_t>(i) * series.width()) +
                          static_cast<double>(series.width() - 1) / 2;
    const double x = at_x(std::min(center, static_cast<double>(x1)));
    last_median = c.median();
    Add(&line, "{}{:.1f} {:.1f}", pen ? "L" : "M", x, at_y(last_median));
    Add(&band_up, "L{:.1f} {:.1f}", x, at_y(c.max));
    band_down = fmt::format("L{:.1f} {:.1f}", x, at_y(c.min)) + band_down;
    pen = true;
    if (c.max > top) {
      Add(&cuts, "<path d=\"M{:.1f} {:.1f}l3 5h-6z\" fill=\"var(--p-data)\"/>", x, upper - 10);
      if (x - last_cut_x > 64 && x < right - 20) {
        Text(&cuts, x + 5, upper - 5, chart.label(c.max));
        last_cut_x = x;
      }
    }
  }
  end_band();
  Add(&out, "<path d=\"{}\" fill=\"var(--p-fwd)\" opacity=\".25\"/>", bands);
  Add(&out,
      "<path d=\"{}\" fill=\"none\" stroke=\"var(--p-fwd)\" stroke-width=\"1.4\" "
      "stroke-linejoin=\"round\"/>",
      line);
  out += cuts;
  Text(&out, right + 5, at_y(last_median) + 4, chart.label(last_median), "", "i");
  if (chart.dots != nullptr && !chart.dots->empty()) {
    const analysis::Columns& d = *chart.dots;
    // Steps of evaluation count apart: they are spread over the same width.
    const double span = static_cast<double>(std::max<std::int64_t>(1, d.last() - d.begin()));
    double last_y = 0;
    for (std::size_t i = 0; i < d.columns().size(); ++i) {
      if (d.columns()[i].count == 0) continue;
      const double share = static_cast<double>(static_cast<std::int64_t>(i) * d.width()) / span;
      last_y = at_y(d.columns()[i].median());
      Add(&out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"var(--p-opt)\"/>",
          left + std::min(1.0, share) * (right - left), last_y);
    }
    Text(&out, right + 5, last_y - 8, chart.dots_label);
  }
  double label_end = -1e9;
  int row = 0;
  for (const Marker& marker : chart.markers) {
    if (marker.x <= x0 || marker.x > x1) continue;
    const double x = at_x(static_cast<double>(marker.x));
    Add(&out,
        "<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"var(--ink-3)\" stroke-dasharray=\"2 2\"/>", x,
        room > 0 ? 14.0 : upper - 6, lower);
    // On the side where it fits, else on the wider one as far as it does.
    const bool flip = x + TextWidth(marker.label) + 6 > right && x > right - x;
    const std::string label = Shorten(marker.label, (flip ? x - 4 : right - x - 4) / kCharacter);
    const double begin = flip ? x - 4 - TextWidth(label) : x + 4;
    row = begin < label_end ? row + 1 : 0;
    label_end = begin + TextWidth(label);
    Text(&out, flip ? x - 4 : x + 4, 11 + 14.0 * (row % std::max(1, static_cast<int>(room / 14))),
         label, flip ? "end" : "", "i2");
  }
  return out + "</svg>";
}

std::string DrawPhaseBars(const std::vector<PhaseBar>& bars, const std::string& sentence) {
  const double left = 150;
  const double right = kPageWidth - 90;
  double longest = 0;
  for (const PhaseBar& bar : bars) {
    double sum = 0;
    for (double ns : bar.ns) sum += ns;
    longest = std::max(longest, sum);
  }
  if (!(longest > 0)) return {};
  const double scale = (right - left) / longest;
  std::string out = Open(kPageWidth, 24.0 * static_cast<double>(bars.size()), sentence);
  double y = 0;
  for (const PhaseBar& bar : bars) {
    Text(&out, 0, y + 12, bar.name, "", "i2");
    double x = left;
    double sum = 0;
    for (std::size_t i = 0; i < bar.ns.size(); ++i) {
      const double width = bar.ns[i] * scale;
      sum += bar.ns[i];
      if (width < 0.3) continue;
      Add(&out, "<rect x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\"/>", x,
          y, std::max(0.5, width - 1), kPhaseTokens[i]);
      const std::string label = Significant(bar.ns[i] / 1e6);
      // Comm wait and other are too light for text; a number is never cut.
      if (width > TextWidth(label) + 10 && i != 1 && i != 5) {
        Text(&out, x + 5, y + 12, label, "", i == 3 ? "on2" : "on");
      }
      x += width;
    }
    Text(&out, x + 6, y + 12, Duration(sum / 1e9), "", "i");
    y += 24;
  }
  return out + "</svg>";
}

std::string DrawLastSteps(const std::vector<std::array<double, 6>>& steps_ns, std::int64_t first,
                          std::int64_t last, const std::string& sentence) {
  if (steps_ns.empty()) return {};
  const double width = 380;
  const double height = 150;
  const double left = 52;
  const double upper = 10;
  const double lower = height - 20;
  double top = 0;
  for (const auto& step : steps_ns) {
    double sum = 0;
    for (double ns : step) sum += ns;
    top = std::max(top, sum);
  }
  if (!(top > 0)) return {};
  std::string out = Open(width, height, sentence);
  Text(&out, left - 6, upper + 4, Duration(top / 1e9), "end");
  Text(&out, left - 6, lower + 4, "0", "end");
  Add(&out, "<path d=\"M{:.0f} {:.1f}H{:.0f}\" stroke=\"var(--line)\"/>", left, lower, width);
  const double each =
      (width - left) / static_cast<double>(std::max<std::size_t>(30, steps_ns.size()));
  // Work at the bottom, waiting above it: the top of the work is then a line that can be compared.
  constexpr std::array<std::size_t, 6> kOrder = {2, 3, 4, 5, 1, 0};
  for (std::size_t i = 0; i < steps_ns.size(); ++i) {
    double y = lower;
    for (std::size_t phase : kOrder) {
      const double h = steps_ns[i][phase] / top * (lower - upper);
      if (h < 0.2) continue;
      y -= h;
      Add(&out, "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>",
          left + static_cast<double>(i) * each, y, each - 1, h, kPhaseTokens[phase]);
    }
  }
  Text(&out, left, height - 5, Thousands(first));
  Text(&out, left + static_cast<double>(steps_ns.size()) * each, height - 5, Thousands(last),
       "end");
  return out + "</svg>";
}

std::string DrawSegments(const std::vector<Segment>& segments, const std::string& sentence) {
  double all = 0;
  for (const Segment& s : segments) all += s.seconds;
  if (!(all > 0)) return {};
  std::string out = Open(kPageWidth, 16, sentence);
  double x = 0;
  for (const Segment& s : segments) {
    const double width = s.seconds / all * kPageWidth;
    if (width < 0.3) continue;
    Add(&out, "<rect x=\"{:.1f}\" y=\"0\" width=\"{:.1f}\" height=\"14\" fill=\"{}\"/>", x,
        std::max(0.8, width - 1), s.token);
    x += width;
  }
  return out + "</svg>";
}

std::string DrawHistogram(const analysis::Quantiles& values, std::string (*label)(double),
                          int width, const std::string& sentence) {
  if (values.count() < 2) return {};
  const double low = values.min();
  double high = values.At(0.985) * 1.02;
  if (values.max() < 1.5 * high) high = values.max();
  if (!(high > low)) high = low * 1.01 + 1e-9;
  constexpr int kBins = 48;
  std::array<double, kBins> bins{};
  std::uint64_t over = 0;
  values.ForEachBucket([&](double value, std::uint64_t count) {
    if (value > high) {
      over += count;
      return;
    }
    // A bucket of the sketch is 2 % wide: its count is spread over the bins that it covers, each by
    // its share.
    const double from = std::max(low, value * 0.99);
    const double to = std::max(from + 1e-12, std::min(high, value * 1.01));
    const double bin = (high - low) / kBins;
    const int first = std::clamp(static_cast<int>((from - low) / bin), 0, kBins - 1);
    const int last = std::clamp(static_cast<int>((to - low) / bin), first, kBins - 1);
    for (int i = first; i <= last; ++i) {
      const double overlap = std::min(to, low + (i + 1) * bin) - std::max(from, low + i * bin);
      bins[static_cast<std::size_t>(i)] +=
          static_cast<double>(count) * std::max(0.0, overlap) / (to - from);
    }
  });
  const double top = *std::max_element(bins.begin(), bins.end());
  if (!(top > 0)) return {};
  const double height = 150;
  const double lower = height - 22;
  const double upper = 20;
  std::string out = Open(width, height, sentence);
  const double each = static_cast<double>(width) / kBins;
  for (int i = 0; i < kBins; ++i) {
    const double h = bins[static_cast<std::size_t>(i)] / top * (lower - upper);
    if (h <= 0) continue;
    Add(&out,
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"var(--c2)\"/>",
        i * each, lower - std::max(h, 0.8), each - 1, std::max(h, 0.8));
  }
  Add(&out, "<path d=\"M0 {:.1f}H{}\" stroke=\"var(--line)\"/>", lower, width);
  Text(&out, 0, height - 6, label(low));
  const double median = values.At(0.5);
  const double x = (median - low) / (high - low) * width;
  if (x > 90 && x < width - 110) Text(&out, x, height - 6, "p50 " + label(median), "middle", "i");
  Text(&out, width, height - 6, label(high), "end");
  if (over > 0) {
    Text(&out, width, 12,
         fmt::format("{} {} over {}, up to {} →", Thousands(static_cast<std::int64_t>(over)),
                     over == 1 ? "step" : "steps", label(high), label(values.max())),
         "end");
  }
  return out + "</svg>";
}

std::string DrawHeat(const std::vector<HeatRow>& rows, std::int64_t begin_ns, std::int64_t end_ns,
                     const std::string& sentence) {
  if (rows.empty() || end_ns <= begin_ns) return {};
  const double left = 62;
  const double right = kPageWidth;
  const double row_height = rows.size() <= 4 ? 16 : (rows.size() <= 16 ? 10 : 6);
  const double bottom = row_height * static_cast<double>(rows.size());
  constexpr int kCells = 160;
  std::string out = Open(kPageWidth, bottom + 20, sentence);
  std::array<std::string, 5> paths;
  const double cell = (right - left) / kCells;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const analysis::Columns& values = *rows[r].values;
    std::array<double, kCells> level{};
    level.fill(-1);
    for (std::size_t i = 0; i < values.columns().size(); ++i) {
      const analysis::Column& c = values.columns()[i];
      if (c.count == 0) continue;
      const double from = static_cast<double>(
          values.begin() + static_cast<std::int64_t>(i) * values.width() - begin_ns);
      const double per_cell = static_cast<double>(end_ns - begin_ns) / kCells;
      // A sample stands for the time until the next one, at most half a second apart by default.
      const double to = from + std::max(static_cast<double>(values.width()), 5.5e8);
      const int first = std::clamp(static_cast<int>(from / per_cell), 0, kCells - 1);
      const int last = std::clamp(static_cast<int>((to - 1) / per_cell), first, kCells - 1);
      for (int k = first; k <= last; ++k) {
        auto& v = level[static_cast<std::size_t>(k)];
        v = std::max(v, c.max);
      }
    }
    const auto stop = [](double v) {
      return v < 0 ? -1 : (v < 10 ? 0 : (v < 35 ? 1 : (v < 65 ? 2 : (v < 90 ? 3 : 4))));
    };
    const double y = static_cast<double>(r) * row_height;
    for (int k = 0; k < kCells;) {
      const int s = stop(level[static_cast<std::size_t>(k)]);
      int end = k + 1;
      while (end < kCells && stop(level[static_cast<std::size_t>(end)]) == s) ++end;
      if (s >= 0) {
        Add(&paths[static_cast<std::size_t>(s)], "M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z",
            left + k * cell, y, (end - k) * cell, row_height - 1, (end - k) * cell);
      }
      k = end;
    }
    if (row_height >= 10 || r == 0 || r + 1 == rows.size()) {
      Text(&out, left - 6, y + row_height / 2 + 4, rows[r].name, "end");
    }
  }
  for (std::size_t s = 0; s < paths.size(); ++s) {
    if (!paths[s].empty()) Add(&out, "<path d=\"{}\" fill=\"var(--c{})\"/>", paths[s], s);
  }
  Text(&out, left, bottom + 14, "0");
  Text(&out, right, bottom + 14, Duration(static_cast<double>(end_ns - begin_ns) / 1e9), "end");
  return out + "</svg>";
}

std::string DrawBoxes(const std::vector<BoxRow>& rows, const std::string& sentence) {
  if (rows.empty()) return {};
  const double left = 150;
  const double right = kPageWidth - 20;
  const double each = 22;
  const double bottom = each * static_cast<double>(rows.size());
  const auto at = [&](double percent) {
    return left + std::clamp(percent, 0.0, 100.0) / 100 * (right - left);
  };
  std::string out = Open(kPageWidth, bottom + 18, sentence);
  for (const double percent : {0.0, 25.0, 50.0, 75.0, 100.0}) {
    Add(&out, "<path d=\"M{:.1f} 0V{:.1f}\" stroke=\"var(--line)\"/>", at(percent), bottom);
    Text(&out, at(percent), bottom + 14, fmt::format("{:.0f}", percent), "middle");
  }
  double y = 0;
  for (const BoxRow& row : rows) {
    const double middle = y + each / 2;
    Text(&out, left - 8, middle + 4, Shorten(row.name, (left - 8) / kCharacter), "end", "i2");
    Add(&out, "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"var(--ink-3)\"/>", at(row.low), middle,
        at(row.high));
    Add(&out, "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"12\" fill=\"var(--c1)\"/>",
        at(row.p25), middle - 6, std::max(1.0, at(row.p75) - at(row.p25)));
    Add(&out, "<path d=\"M{0:.1f} {1:.1f}v12\" stroke=\"var(--c4)\" stroke-width=\"2\"/>",
        at(row.p50), middle - 6);
    for (const double dot : {row.p05, row.p95}) {
      Add(&out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"var(--c3)\"/>", at(dot),
          middle);
    }
    y += each;
  }
  return out + "</svg>";
}

std::string DrawBins(const std::vector<double>& bins, const std::string& from,
                     const std::string& to, int width, const std::string& sentence) {
  if (bins.empty()) return {};
  const double top = *std::max_element(bins.begin(), bins.end());
  if (!(top > 0)) return {};
  const double lower = 80;
  std::string out = Open(width, lower + 20, sentence);
  const double each = static_cast<double>(width) / static_cast<double>(bins.size());
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const double height = bins[i] / top * (lower - 4);
    if (height <= 0) continue;
    Add(&out,
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"var(--c2)\"/>",
        static_cast<double>(i) * each, lower - height, std::max(0.5, each - 1), height);
  }
  Text(&out, 0, lower + 14, from);
  Text(&out, width, lower + 14, to, "end");
  return out + "</svg>";
}

}  // namespace telltale::report
