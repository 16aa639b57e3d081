// SPDX-License-Identifier: Apache-2.0
#include "telemetry/cloudwatch.h"

#include <fmt/format.h>
#include <time.h>

#include <array>
#include <cmath>
#include <utility>

#include "base/http_client.h"

namespace telltale::telemetry {
namespace {

/// Half of what a request may hold; the body may have 1 MB.
constexpr std::size_t kMaxMetrics = 500;
constexpr std::size_t kMaxBytes = 512 << 10;
/// Values beyond are refused, those nearer to zero taken for it.
constexpr int kLargestExponent = 360;
constexpr int kSmallestExponent = -360;
constexpr std::size_t kMaxNameSpace = 255;

std::string_view UnitOf(std::string_view ucum) {
  constexpr auto kUnits =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"s", "Seconds"},
                                                                    {"By", "Bytes"},
                                                                    {"%", "Percent"},
                                                                    {"1/s", "Count/Second"},
                                                                    {"By/s", "Bytes/Second"}});
  for (const auto& [ours, theirs] : kUnits) {
    if (ours == ucum) return theirs;
  }
  return "None";
}

/// ASCII that can be seen, and no colon in front; empty where nothing is left.
std::string Dimension(std::string_view text) {
  std::string out;
  bool blank = true;
  for (const char c : text) {
    const bool shown = c >= ' ' && c <= '~';
    out += shown ? c : '?';
    blank = blank && c == ' ';
  }
  if (blank) return {};
  if (out.front() == ':') out.front() = '_';
  return out;
}

std::string Iso(std::int64_t ns) {
  const time_t seconds = static_cast<time_t>(ns / 1'000'000'000);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// One metric as parameters, number `n` of its request.
std::string Datum(std::size_t n, const std::string& name, const Family& family,
                  const Point& point) {
  const std::string prefix = fmt::format("&MetricData.member.{}.", n);
  std::string out = prefix + "MetricName=" + PercentEncoded(name);
  std::size_t dimension = 0;
  for (const auto& [label, text] : point.labels) {
    const std::string value = Dimension(text);
    if (value.empty()) continue;
    ++dimension;
    out += fmt::format("{0}Dimensions.member.{1}.Name={2}{0}Dimensions.member.{1}.Value={3}",
                       prefix, dimension, PercentEncoded(label), PercentEncoded(value));
  }
  const double value =
      point.value != 0 && std::ilogb(point.value) <= kSmallestExponent ? 0 : point.value;
  out += fmt::format("{0}Value={1}{0}Unit={2}{0}Timestamp={3}", prefix,
                     PercentEncoded(fmt::format("{}", value)), PercentEncoded(UnitOf(family.unit)),
                     PercentEncoded(Iso(point.time_ns)));
  return out;
}

std::string Element(std::string_view xml, std::string_view name) {
  const auto begin = xml.find(fmt::format("<{}>", name));
  if (begin == std::string_view::npos) return {};
  const auto from = begin + name.size() + 2;
  const auto end = xml.find(fmt::format("</{}>", name), from);
  if (end == std::string_view::npos) return {};
  return std::string(xml.substr(from, end - from));
}

}  // namespace

CloudWatchBodies ToCloudWatch(const MetricSet& metrics, std::string_view name_space) {
  const std::string head = "Action=PutMetricData&Version=2010-08-01&Namespace=" +
                           PercentEncoded(name_space.substr(0, kMaxNameSpace));
  CloudWatchBodies out;
  std::size_t inside = 0;
  for (const auto& [name, family] : metrics.families()) {
    for (const auto& [key, point] : family.points) {
      if (!point.brief) continue;
      if (!std::isfinite(point.value) ||
          (point.value != 0 && std::ilogb(point.value) >= kLargestExponent)) {
        ++out.left_out;
        continue;
      }
      if (inside == 0 || inside == kMaxMetrics || out.bodies.back().size() >= kMaxBytes) {
        out.bodies.push_back(head);
        inside = 0;
      }
      out.bodies.back() += Datum(++inside, name, family, point);
      ++out.metrics;
    }
  }
  return out;
}

std::string CloudWatchUrl(std::string_view region) {
  return fmt::format("https://monitoring.{}.amazonaws.com{}/", region,
                     region.starts_with("cn-") ? ".cn" : "");
}

std::string CloudWatchError(std::string_view xml) {
  const std::string code = Element(xml, "Code");
  const std::string message = Element(xml, "Message");
  if (code.empty()) return message;
  return message.empty() ? code : code + ": " + message;
}

}  // namespace telltale::telemetry
