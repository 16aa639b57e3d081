// SPDX-License-Identifier: Apache-2.0
#include "telemetry/prometheus_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <system_error>

namespace telltale::telemetry {
namespace {

constexpr std::string_view kTotalSuffix = "_total";

/// Backslash and line break; in a label and in OpenMetrics the double quote too.
void AppendEscaped(std::string* out, std::string_view text, bool quote) {
  for (const char c : text) {
    if (c == '\\') {
      *out += "\\\\";
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '"' && quote) {
      *out += "\\\"";
    } else {
      *out += c;
    }
  }
}

void AppendValue(std::string* out, double value) {
  if (std::isnan(value)) {
    *out += "NaN";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "+Inf" : "-Inf";
  } else {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  }
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// The part up to `end`, which goes from `text` with what ends it.
std::string_view Take(std::string_view* text, char end) {
  const auto at = text->find(end);
  const std::string_view part = Trimmed(text->substr(0, at));
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + 1);
  return part;
}

}  // namespace

std::string_view ContentType(TextFormat format) {
  return format == TextFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string ToText(const MetricSet& metrics, TextFormat format) {
  const bool open = format == TextFormat::kOpenMetrics;
  std::string out;
  for (const auto& [name, family] : metrics.families()) {
    // OpenMetrics names a counter without what its samples end in.
    std::string_view named = name;
    if (open && family.kind == Kind::kCounter && named.ends_with(kTotalSuffix)) {
      named.remove_suffix(kTotalSuffix.size());
    }
    fmt::format_to(std::back_inserter(out), "# HELP {} ", named);
    AppendEscaped(&out, family.help, open);
    fmt::format_to(std::back_inserter(out), "\n# TYPE {} {}\n", named,
                   family.kind == Kind::kCounter ? "counter" : "gauge");
    for (const auto& [key, point] : family.points) {
      out += name;
      char separator = '{';
      for (const auto& [label, text] : point.labels) {
        out += separator;
        out += label;
        out += "=\"";
        AppendEscaped(&out, text, true);
        out += '"';
        separator = ',';
      }
      if (separator == ',') out += '}';
      out += ' ';
      AppendValue(&out, point.value);
      out += '\n';
    }
  }
  if (open) out += "# EOF\n";
  return out;
}

TextFormat FormatOf(std::string_view accept) {
  double open = 0;
  double text = 0;
  while (!accept.empty()) {
    std::string_view one = Take(&accept, ',');
    const std::string_view type = Take(&one, ';');
    double q = 1;
    bool version_known = true;
    while (!one.empty()) {
      const std::string_view parameter = Take(&one, ';');
      if (parameter.starts_with("q=")) {
        double value = 0;
        const auto [end, error] =
            std::from_chars(parameter.data() + 2, parameter.data() + parameter.size(), value);
        if (error == std::errc()) q = value;
      } else if (parameter.starts_with("version=")) {
        version_known = parameter == "version=1.0.0";
      }
    }
    if (type == "application/openmetrics-text") {
      if (version_known) open = std::max(open, q);
    } else if (type == "text/plain") {
      text = std::max(text, q);
    }
  }
  return open > 0 && open >= text ? TextFormat::kOpenMetrics : TextFormat::kPrometheus;
}

}  // namespace telltale::telemetry
