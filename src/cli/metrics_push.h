// SPDX-License-Identifier: Apache-2.0
// Pushes a run's metrics once, or again and again until the run is over. What cannot be sent is
// never queued: the next try sends what is then.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "telemetry/sink.h"

namespace telltale::cli {

struct PushOptions {
  std::string run;
  bool follow = false;
  std::int64_t interval_ms = 10'000;
  /// Pid of the watcher that started us: we end with it, after a last push, and take nothing from
  /// the training. 0: we were started by hand.
  int parent = 0;
};

struct PushReport {
  std::uint64_t pushes = 0;
  std::uint64_t failures = 0;
  std::uint64_t points = 0;  ///< Of the last push.
  std::string note;          ///< Of the last push.
};

/// Blocks until it is done, or a signal to end comes: then it pushes once more. Errors that may
/// pass are said on stderr, each once; a Status of those that do not, and of the last push.
Result<PushReport> PushMetrics(const PushOptions& options, telemetry::MetricSink* sink);

}  // namespace telltale::cli
