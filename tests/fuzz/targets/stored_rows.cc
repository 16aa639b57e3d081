// SPDX-License-Identifier: Apache-2.0
// A run whose journal holds rows that nobody vouches for, through all that opens a run directory:
// readers, check, the listing, verify and the metrics that are exported.
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/check_json.h"
#include "format/batch.h"
#include "fuzz.h"
#include "report/load.h"
#include "server/run_card.h"
#include "store/folder.h"
#include "store/journal_format.h"
#include "store/journal_writer.h"
#include "store/reader.h"
#include "store/run_info.h"
#include "store/verify.h"
#include "telemetry/otlp.h"
#include "telemetry/prometheus_text.h"
#include "telemetry/run_metrics.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

/// A finished run with the batch as it is: a writer of ours would put its rows right.
fs::path MakeRun(std::string_view batch) {
  const fs::path run = ScratchRoot() / "run";
  std::error_code ignored;
  fs::remove_all(run, ignored);
  fs::create_directories(run);
  store::RunInfo info{.id = "run", .name = "run"};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 0});
  info.finished = true;
  Require(store::WriteRunInfo(run, info).ok());
  fs::create_directory(run / "agent-fuzz");
  store::JournalHeader header;
  header.writer = "agent-fuzz";
  header.number = 1;
  header.created_ns = 1;
  header.next_seq = store::FirstSeqs();
  store::EndRecord end;
  end.next_seq = store::FirstSeqs();
  const std::string records[] = {store::Encode(header), std::string(batch), store::Encode(end)};
  bool no_space = false;
  Require(store::JournalWriter::Create(run / "agent-fuzz" / store::JournalFileName(1), records,
                                       &no_space)
              .ok());
  return run;
}

}  // namespace

TELLTALE_FUZZ_TARGET(stored_rows) {
  if (bytes.empty() || bytes.size() > (1U << 20)) return;
  const fs::path run = MakeRun(bytes);
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
