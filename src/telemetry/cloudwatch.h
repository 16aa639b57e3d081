// SPDX-License-Identifier: Apache-2.0
// Metrics as CloudWatch's PutMetricData takes them (API version 2010-08-01, query protocol). Only
// what is marked brief goes there, since each metric is paid for.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/metric_set.h"

namespace telltale::telemetry {

struct CloudWatchBodies {
  std::vector<std::string> bodies;  ///< One a request, each within the limits of the service.
  std::size_t metrics = 0;
  std::size_t left_out = 0;  ///< Values that the service does not take: NaN, infinite, too large.
};
CloudWatchBodies ToCloudWatch(const MetricSet& metrics, std::string_view name_space);

/// https://monitoring.REGION.amazonaws.com/
std::string CloudWatchUrl(std::string_view region);
/// Code and message of an error's XML, "Throttling: Rate exceeded"; empty where it is none.
std::string CloudWatchError(std::string_view xml);

}  // namespace telltale::telemetry
