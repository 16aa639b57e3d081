// SPDX-License-Identifier: Apache-2.0
// A run whose journal holds rows that nobody vouches for, through all that opens a run directory:
// readers, check, the listing, verify and the metrics that are exported.
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/check_json.h"
#include "fuzz.h"
#include "report/load.h"
#include "server/run_card.h"
#include "store/verify.h"
#include "stored_run.h"
#include "telemetry/otlp.h"
#include "telemetry/prometheus_text.h"
#include "telemetry/run_metrics.h"

namespace telltale::fuzz {
TELLTALE_FUZZ_TARGET(stored_rows) {
  if (bytes.empty() || bytes.size() > (1U << 20)) return;
  const std::filesystem::path run = StoredRun(bytes);
  const auto data = report::Load(run);
  if (data.ok()) Require(nlohmann::json::accept(cli::CheckDocument(*data)));
  static_cast<void>(server::ReadCard(run));
  static_cast<void>(store::Verify(run));
  telemetry::RunMetrics metrics("", run, {.replay = true});
  while (true) {
    const auto more = metrics.Advance(std::chrono::steady_clock::now() + std::chrono::seconds(1));
    if (!more.ok() || !*more) break;
  }
  telemetry::MetricSet set;
  metrics.AddTo(1'700'000'000'000'000'000, &set);
  static_cast<void>(telemetry::ToText(set, telemetry::TextFormat::kOpenMetrics));
  static_cast<void>(telemetry::ToOtlp(set, {}));
}

}  // namespace telltale::fuzz
