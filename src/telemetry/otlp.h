// SPDX-License-Identifier: Apache-2.0
// Metrics as OTLP over HTTP takes them: an ExportMetricsServiceRequest in binary protocol buffers,
// which every receiver reads (JSON is optional for them). opentelemetry-proto 1.x.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/metric_set.h"

namespace telltale::telemetry {

struct OtlpResource {
  std::vector<std::pair<std::string, std::string>> attributes;  ///< service.name, host.name, ...
  std::string version;                                          ///< Of this program.
};
std::string ToOtlp(const MetricSet& metrics, const OtlpResource& resource);

/// What a receiver says of a request that it took: points that it refused all the same, and why.
struct OtlpAnswer {
  std::int64_t rejected = 0;
  std::string message;
};
/// Nothing rejected where the body is none.
OtlpAnswer ParseOtlpAnswer(std::string_view body);

/// The address that metrics are posted to: one without a path gets /v1/metrics.
std::string OtlpUrl(const std::string& endpoint);
/// "a=1,b=%20x" of OTEL_EXPORTER_OTLP_HEADERS as header lines; what is no pair is left out.
std::vector<std::string> OtlpHeaders(std::string_view text);

}  // namespace telltale::telemetry
