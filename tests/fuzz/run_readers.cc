// SPDX-License-Identifier: Apache-2.0
#include "run_readers.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/check_json.h"
#include "cli/export_traces.h"
#include "format/records.gen.h"
#include "fuzz.h"
#include "interchange/windows/window_import.h"
#include "query/query.h"
#include "report/html.h"
#include "report/load.h"
#include "server/live_run.h"
#include "server/run_card.h"
#include "store/reader.h"
#include "store/tensor_file.h"
#include "store/verify.h"
#include "telemetry/cloudwatch.h"
#include "telemetry/otlp.h"
#include "telemetry/prometheus_text.h"
#include "telemetry/run_metrics.h"

namespace telltale::fuzz {

namespace fs = std::filesystem;

void CheckRun(const fs::path& run) {
  if (const auto data = report::Load(run); data.ok()) {
    Require(nlohmann::json::accept(cli::CheckDocument(*data)));
  }
  static_cast<void>(server::ReadCard(run));
  static_cast<void>(store::Verify(run));
}

void MeasureRun(const fs::path& run) {
  telemetry::RunMetrics metrics("", run, {.replay = true});
  while (true) {
    const auto more = metrics.Advance(std::chrono::steady_clock::now() + std::chrono::seconds(1));
    if (!more.ok() || !*more) break;
  }
  telemetry::MetricSet set;
  metrics.AddTo(1'700'000'000'000'000'000, &set);
  static_cast<void>(telemetry::ToText(set, telemetry::TextFormat::kOpenMetrics));
  static_cast<void>(telemetry::ToOtlp(set, {}));
  static_cast<void>(telemetry::ToCloudWatch(set, "Telltale"));
}

void ServeRun(const fs::path& run) {
  server::LiveRun live("run", run);
  while (live.Advance(std::chrono::seconds(1))) {
  }
  Require(live.Publish(true));
  const auto snapshot = live.snapshot();
  Require(!snapshot->error.empty() || nlohmann::json::accept(snapshot->overview));
  live.AskReport();
  static_cast<void>(live.MakeReport());
}

void QueryRun(const fs::path& run) {
  for (const char* table : {"scalars", "slices", "tensors"}) {
    store::Salvage salvage;
    std::string text;
    const auto sink = [&](std::string_view piece) {
      text += piece;
      return true;
    };
    const Status status =
        query::RunQuery(run, {.table = table, .format = query::Format::kJson}, sink, &salvage);
    if (status.ok()) Require(nlohmann::json::accept(text));
  }
  const auto reader = store::RunReader::Open(run);
  if (!reader.ok()) return;
  store::Salvage salvage;
  const auto open = [&](const std::string& writer, const format::Rows& rows) {
    for (const format::TensorRow& row : rows.tensors) {
      const auto tensor = store::OpenTensor(run, writer, row);
      // Reads each byte.
      if (tensor.ok()) static_cast<void>(store::DigestText(tensor->values));
    }
    return true;
  };
  static_cast<void>((*reader)->Scan(store::MaskOf(format::TableId::kTensors), open, &salvage));
}

void ExportRun(const fs::path& run) {
  const fs::path output = ScratchRoot() / "exported";
  std::error_code ignored;
  for (const char* format : {"chrome", "pprof", "timeline", "parquet"}) {
    cli::TraceExport what;
    what.format = format;
    what.run = run;
    what.output = output;
    what.table = "slices";
    static_cast<void>(cli::WriteExport(what));
    fs::remove_all(output, ignored);
  }
}

void WriteIntoRun(const fs::path& run) {
  interchange::WindowImportRequest request{.run = run, .all = true, .in_child = false};
  request.limits = {.memory_bytes = 4 << 20, .inflated_bytes = 1 << 20, .events = 1000};
  static_cast<void>(interchange::ImportWindows(request));
  if (const auto data = report::Load(run); data.ok()) {
    static_cast<void>(report::WriteReport(*data, run / "report.html"));
  }
}

}  // namespace telltale::fuzz
