// SPDX-License-Identifier: Apache-2.0
#include "telemetry/otlp.h"

#include <exception>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <protozero/types.hpp>

#include "base/http_client.h"

namespace telltale::telemetry {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;
using protozero::tag_and_type;

// Numbers of fields.
constexpr std::uint32_t kResourceMetrics = 1;  // Of the request.
constexpr std::uint32_t kResource = 1;         // Of ResourceMetrics.
constexpr std::uint32_t kScopeMetrics = 2;
constexpr std::uint32_t kResourceAttributes = 1;
constexpr std::uint32_t kScope = 1;  // Of ScopeMetrics.
constexpr std::uint32_t kMetrics = 2;
constexpr std::uint32_t kScopeName = 1;
constexpr std::uint32_t kScopeVersion = 2;
namespace metric_field {
constexpr std::uint32_t kName = 1;
constexpr std::uint32_t kDescription = 2;
constexpr std::uint32_t kUnit = 3;
constexpr std::uint32_t kGauge = 5;
constexpr std::uint32_t kSum = 7;
}  // namespace metric_field
constexpr std::uint32_t kDataPoints = 1;  // Of Gauge and Sum.
constexpr std::uint32_t kTemporality = 2;
constexpr std::uint32_t kMonotonic = 3;
constexpr std::int32_t kCumulative = 2;
namespace point_field {
constexpr std::uint32_t kStart = 2;
constexpr std::uint32_t kTime = 3;
constexpr std::uint32_t kAsDouble = 4;
constexpr std::uint32_t kAttributes = 7;
}  // namespace point_field
constexpr std::uint32_t kKey = 1;  // Of KeyValue.
constexpr std::uint32_t kValue = 2;
constexpr std::uint32_t kStringValue = 1;     // Of AnyValue.
constexpr std::uint32_t kPartialSuccess = 1;  // Of the response.
constexpr std::uint32_t kRejected = 1;
constexpr std::uint32_t kMessage = 2;

constexpr std::string_view kTotal = "_total";

void AddAttribute(pbf_writer* parent, std::uint32_t field, const std::string& key,
                  const std::string& text) {
  pbf_writer pair(*parent, field);
  pair.add_string(kKey, key);
  pbf_writer value(pair, kValue);
  value.add_string(kStringValue, text);
}

void AddPoint(pbf_writer* data, const Point& point, bool counter) {
  pbf_writer out(*data, kDataPoints);
  if (counter) out.add_fixed64(point_field::kStart, static_cast<std::uint64_t>(point.start_ns));
  out.add_fixed64(point_field::kTime, static_cast<std::uint64_t>(point.time_ns));
  out.add_double(point_field::kAsDouble, point.value);
  for (const auto& [key, text] : point.labels) {
    AddAttribute(&out, point_field::kAttributes, key, text);
  }
}

void AddFamily(pbf_writer* scope, std::string_view name, const Family& family) {
  const bool counter = family.kind == Kind::kCounter;
  // Receivers that want it add it themselves.
  if (counter && name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
  pbf_writer metric(*scope, kMetrics);
  metric.add_string(metric_field::kName, name.data(), name.size());
  metric.add_string(metric_field::kDescription, family.help);
  metric.add_string(metric_field::kUnit, family.unit);
  pbf_writer data(metric, counter ? metric_field::kSum : metric_field::kGauge);
  for (const auto& [key, point] : family.points) AddPoint(&data, point, counter);
  if (!counter) return;
  data.add_enum(kTemporality, kCumulative);
  data.add_bool(kMonotonic, true);
}

int Hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string Decoded(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && Hex(text[i + 1]) >= 0 && Hex(text[i + 2]) >= 0) {
      out += static_cast<char>(Hex(text[i + 1]) * 16 + Hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string ToOtlp(const MetricSet& metrics, const OtlpResource& resource) {
  std::string bytes;
  {
    pbf_writer request(bytes);
    pbf_writer resource_metrics(request, kResourceMetrics);
    {
      pbf_writer described(resource_metrics, kResource);
      for (const auto& [key, text] : resource.attributes) {
        if (!text.empty()) AddAttribute(&described, kResourceAttributes, key, LabelText(text));
      }
    }
    pbf_writer scope_metrics(resource_metrics, kScopeMetrics);
    {
      pbf_writer scope(scope_metrics, kScope);
      scope.add_string(kScopeName, "telltale");
      scope.add_string(kScopeVersion, resource.version);
    }
    for (const auto& [name, family] : metrics.families()) {
      AddFamily(&scope_metrics, name, family);
    }
  }
  return bytes;
}

OtlpAnswer ParseOtlpAnswer(std::string_view body) {
  OtlpAnswer out;
  try {
    pbf_reader response(body.data(), body.size());
    while (response.next()) {
      if (response.tag_and_type() !=
          tag_and_type(kPartialSuccess, pbf_wire_type::length_delimited)) {
        response.skip();
        continue;
      }
      pbf_reader partial = response.get_message();
      while (partial.next()) {
        if (partial.tag_and_type() == tag_and_type(kRejected, pbf_wire_type::varint)) {
          out.rejected = partial.get_int64();
        } else if (partial.tag_and_type() ==
                   tag_and_type(kMessage, pbf_wire_type::length_delimited)) {
          out.message = partial.get_string();
        } else {
          partial.skip();
        }
      }
    }
  } catch (const std::exception&) {
    // Answers in JSON, or none of this protocol: the status has said that it was taken.
    return {};
  }
  return out;
}

std::string OtlpUrl(const std::string& endpoint) {
  if (!HasNoPath(endpoint) || endpoint.find_first_of("?#") != std::string::npos) return endpoint;
  return endpoint.ends_with('/') ? endpoint + "v1/metrics" : endpoint + "/v1/metrics";
}

std::vector<std::string> OtlpHeaders(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const auto equals = pair.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name = Decoded(pair.substr(0, equals));
    if (!name.empty()) out.push_back(name + ": " + Decoded(pair.substr(equals + 1)));
  }
  return out;
}

}  // namespace telltale::telemetry
