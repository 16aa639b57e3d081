// SPDX-License-Identifier: Apache-2.0
// Metrics as Prometheus reads them: the text format 0.0.4, and OpenMetrics 1.0.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "telemetry/metric_set.h"

namespace telltale::telemetry {

enum class TextFormat : std::uint8_t { kPrometheus, kOpenMetrics };

std::string_view ContentType(TextFormat format);
std::string ToText(const MetricSet& metrics, TextFormat format);

/// Which one an Accept header asks for: OpenMetrics 1.0 where it is preferred to plain text or as
/// welcome, else the text format.
TextFormat FormatOf(std::string_view accept);

}  // namespace telltale::telemetry
