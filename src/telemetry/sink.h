// SPDX-License-Identifier: Apache-2.0
// Where metrics are pushed to. A sink sends what is now and keeps nothing: what could not be sent
// is overtaken by what comes after it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "telemetry/metric_set.h"
#include "telemetry/otlp.h"

namespace telltale::telemetry {

struct Sent {
  Status status;
  bool retry = false;              ///< It may be taken later.
  std::int64_t retry_after_s = 0;  ///< As the receiver says; 0: it does not.
  std::size_t points = 0;          ///< Taken.
  std::string note;                ///< What was not taken of them, and why; empty: nothing.
};

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// Blocks for at most about `timeout_ms`.
  virtual Sent Send(const MetricSet& metrics, std::int64_t timeout_ms) = 0;
};

struct OtlpOptions {
  std::string url;  ///< Of OtlpUrl.
  std::vector<std::string> headers;
  std::string ca_file;
  OtlpResource resource;
};
std::unique_ptr<MetricSink> MakeOtlpSink(OtlpOptions options);

struct CloudWatchOptions {
  std::string region;
  std::string url;  ///< Empty: that of the region.
  std::string name_space = "Telltale";
};
std::unique_ptr<MetricSink> MakeCloudWatchSink(CloudWatchOptions options);

/// How long to wait after a try: the interval; after `failures` in a row longer and longer, or as
/// long as the receiver says, never longer than kLongestPauseMs.
inline constexpr std::int64_t kLongestPauseMs = 300'000;
std::int64_t PauseMs(std::int64_t interval_ms, int failures, std::int64_t retry_after_s);

}  // namespace telltale::telemetry
