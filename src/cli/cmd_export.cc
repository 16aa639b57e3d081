// SPDX-License-Identifier: Apache-2.0
// telltale export: a run in another tool's format, its metrics pushed to who collects metrics, and
// the files with which those are read.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/aws_credentials.h"
#include "base/http_client.h"
#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/export_traces.h"
#include "cli/metrics_push.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "interchange/tensorboard_export.h"
#include "store/folder.h"
#include "store/run_info.h"
#include "telemetry/alert_rules.h"
#include "telemetry/otlp.h"
#include "telemetry/sink.h"

namespace telltale::cli {
namespace {

constexpr std::int64_t kOtlpSeconds = 10;
constexpr std::int64_t kCloudWatchSeconds = 60;

struct Args {
  std::string format;
  std::string run;
  std::string output;
  bool statistics = false;
  std::string endpoint;
  bool follow = false;
  std::optional<std::int64_t> interval_s;
  std::vector<std::string> headers;
  std::string region;
  std::string name_space = "Telltale";
  int parent = 0;
  TraceExport trace;
  bool json = false;
};

/// The exit code of what was exported.
int TellDamage(const std::string& run, const store::Salvage& salvage) {
  if (!salvage.any()) return 0;
  return Fail("export", {Code::kPartial,
                         fmt::format("{}: part of the recording is damaged: the rest was exported: "
                                     "see `telltale verify {}`",
                                     run, run)});
}

int TensorBoard(const Args& args) {
  const auto report =
      interchange::ExportTensorBoard(args.run, args.output, {.statistics = args.statistics});
  if (!report.ok()) return Fail("export", report.status());
  if (args.json) {
    nlohmann::ordered_json result = {{"scalars", report->scalars},
                                     {"histograms", report->histograms},
                                     {"empty_histograms", report->empty_histograms},
                                     {"files", nlohmann::ordered_json::array()}};
    for (const auto& file : report->files) result["files"].push_back(file.string());
    Print("{}\n", DocumentText(result));
  } else {
    Print("{} scalars and {} histograms in {} files: tensorboard --logdir {}\n", report->scalars,
          report->histograms, report->files.size(), Printable(args.output));
  }
  return TellDamage(args.run, report->salvage);
}

std::string Env(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

int Push(const Args& args, telemetry::MetricSink* sink, std::int64_t seconds) {
  PushOptions options;
  options.run = args.run;
  options.follow = args.follow;
  options.interval_ms = args.interval_s.value_or(seconds) * 1000;
  options.parent = args.parent;
  const auto report = PushMetrics(options, sink);
  if (!report.ok()) return Fail("export", report.status());
  if (args.json) {
    Print("{}\n", DocumentText({{"pushes", report->pushes},
                                {"failures", report->failures},
                                {"points", report->points},
                                {"note", report->note}}));
  } else {
    Print("{} points, {} pushes, {} failed\n", report->points, report->pushes, report->failures);
  }
  return 0;
}

int Otlp(const Args& args) {
  std::string endpoint = args.endpoint;
  // The specification's variables, where no flag says otherwise.
  const bool whole = endpoint.empty() && !Env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").empty();
  if (whole) endpoint = Env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
  if (endpoint.empty()) endpoint = Env("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (!IsHttpUrl(endpoint)) {
    return Fail("export",
                Status(Code::kUsage,
                       endpoint.empty()
                           ? "no --endpoint: write for example --endpoint http://127.0.0.1:4318"
                           : "--endpoint: no address of http:// or https://: write for example "
                             "--endpoint http://127.0.0.1:4318"));
  }
  const auto info = store::ReadRunInfo(args.run);
  if (!info.ok()) return Fail("export", info.status());
  telemetry::OtlpOptions options;
  options.url = whole ? endpoint : telemetry::OtlpUrl(endpoint);
  options.headers = telemetry::OtlpHeaders(Env("OTEL_EXPORTER_OTLP_HEADERS"));
  options.headers.insert(options.headers.end(), args.headers.begin(), args.headers.end());
  options.ca_file = Env("OTEL_EXPORTER_OTLP_CERTIFICATE");
  options.resource.version = TELLTALE_VERSION;
  options.resource.attributes = {{"service.name", "telltale"},
                                 {"service.instance.id", info->id},
                                 {"service.version", TELLTALE_VERSION},
                                 {"host.name", info->host},
                                 {"telltale.run.name", info->name}};
  const auto sink = telemetry::MakeOtlpSink(std::move(options));
  return Push(args, sink.get(), kOtlpSeconds);
}

int CloudWatch(const Args& args) {
  telemetry::CloudWatchOptions options;
  options.region = args.region.empty() ? AwsRegion() : args.region;
  if (options.region.empty()) {
    return Fail("export", Status(Code::kUsage,
                                 "no region: write --region, or set AWS_REGION: for example "
                                 "--region eu-central-1"));
  }
  if (!args.endpoint.empty() && !IsHttpUrl(args.endpoint)) {
    return Fail("export", Status(Code::kUsage, "--endpoint: no address of http:// or https://"));
  }
  if (args.name_space.empty() || args.name_space.starts_with(':') ||
      args.name_space.starts_with("AWS/")) {
    return Fail("export", Status(Code::kUsage,
                                 "--namespace: it may be neither empty nor begin with ':' or "
                                 "'AWS/': write for example --namespace Telltale"));
  }
  options.url = args.endpoint;
  if (!options.url.empty() && HasNoPath(options.url) && !options.url.ends_with('/')) {
    options.url += '/';
  }
  options.name_space = args.name_space;
  const auto sink = telemetry::MakeCloudWatchSink(std::move(options));
  return Push(args, sink.get(), kCloudWatchSeconds);
}

int TellExported(const TraceExport& what, Exported done) {
  if (!what.output.empty()) {
    if (what.json) {
      if (!done.result.contains("files")) done.result["file"] = what.output;
      Print("{}\n", DocumentText(done.result));
    } else {
      Print("{}: {}\n", done.words, Printable(what.output));
    }
  }
  return TellDamage(what.run, done.salvage);
}

int Trace(const TraceExport& what) {
  Result<Exported> done = WriteExport(what);
  return done.ok() ? TellExported(what, std::move(done).value()) : Fail("export", done.status());
}

int Text(const Args& args, const std::string& text) {
  if (args.output.empty()) {
    WriteOut(text);
    return 0;
  }
  const Status written = store::ReplaceFile(std::filesystem::absolute(args.output), text);
  if (!written.ok()) return Fail("export", written);
  if (args.json) {
    Print("{}\n", DocumentText({{"file", args.output}}));
  } else {
    Print("{}\n", Printable(args.output));
  }
  return 0;
}

int Export(const Args& args) {
  const bool of_a_run = args.format != "prometheus-rules" && args.format != "grafana";
  if (of_a_run == args.run.empty()) {
    return Fail(
        "export",
        Status(Code::kUsage,
               of_a_run ? fmt::format("no RUN: write telltale export {} RUN", args.format)
                        : fmt::format("{} is of no run: leave out '{}'", args.format, args.run)));
  }
  if (args.format == "tensorboard") {
    if (args.output.empty()) {
      return Fail("export", Status(Code::kUsage, "no folder to write to: write -o DIR"));
    }
    return TensorBoard(args);
  }
  if (IsTraceFormat(args.format)) {
    TraceExport trace = args.trace;
    trace.format = args.format;
    trace.run = args.run;
    trace.output = args.output;
    trace.json = args.json;
    return WithRun("export", &trace.run, [&trace] { return Trace(trace); });
  }
  if (args.format == "otlp") return Otlp(args);
  if (args.format == "cloudwatch") return CloudWatch(args);
  return Text(args,
              args.format == "grafana" ? telemetry::GrafanaDashboard() : telemetry::AlertRules());
}

}  // namespace

void RegisterExport(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(
      app, "export", "Write a run in another tool's format, or push its metrics",
      "  telltale export tensorboard telltale-runs/20261120-150412-train -o logs\n"
      "  telltale export tensorboard RUN -o logs --statistics\n"
      "  telltale export perfetto RUN -o run.pftrace\n"
      "  telltale export pprof RUN -o run.pb.gz\n"
      "  telltale export collapsed RUN --sample-type device | flamegraph.pl > run.svg\n"
      "  telltale export flamegraph RUN -o run.html --phase forward\n"
      "  telltale export pprof RUN -o windows.pb.gz --source trace\n"
      "  telltale export timeline RUN -o timelines --step 5\n"
      "  telltale export parquet RUN --table steps -o steps.parquet\n"
      "  telltale export otlp RUN --endpoint http://127.0.0.1:4318 --follow\n"
      "  telltale export cloudwatch RUN --region eu-central-1 --follow\n"
      "  telltale export prometheus-rules -o telltale-alerts.yml\n"
      "  telltale export grafana -o telltale-dashboard.json\n"
      "tensorboard: scalars and histograms as event files, a folder a mode and rank. chrome, "
      "perfetto, speedscope: slices, spans, steps and metrics on a timeline. pprof, collapsed: "
      "stacks with their times. flamegraph: them as a page of HTML. timeline: a file a step, "
      "as TensorFlow's ProfilerHook writes them. "
      "parquet, "
      "csv: one table. otlp, "
      "cloudwatch: what the run is like now, findings and the states of rules too; with --follow "
      "until it is over. prometheus-rules, grafana: alert rules and a dashboard, of no run.",
      {0, 3, 6, 7, 8});
  auto args = std::make_shared<Args>();
  AddOption(
      command, "FORMAT", args->format,
      "tensorboard, chrome, perfetto, speedscope, pprof, collapsed, flamegraph, timeline, parquet, "
      "csv, otlp, "
      "cloudwatch, prometheus-rules or grafana")
      .Required()
      .OneOf({"tensorboard", "chrome", "perfetto", "speedscope", "pprof", "collapsed", "flamegraph",
              "timeline", "parquet", "csv", "otlp", "cloudwatch", "prometheus-rules", "grafana"});
  AddOption(command, "RUN", args->run, "Run directory, or a trace");
  AddOption(command, "-o,--output", args->output,
            "Folder (tensorboard, timeline) or file (default: stdout) to write to; .gz compresses "
            "chrome, perfetto and speedscope");
  AddFlag(command, "--statistics", args->statistics,
          "Mean, std, min, max, NaN and Inf counts of tensors too, as scalars");
  AddOption(command, "--table", args->trace.table, "Table (parquet, csv), for example steps");
  AddOption(command, "--step", args->trace.step,
            "This step alone (timeline, pprof, collapsed, flamegraph)");
  AddOption(command, "--rank", args->trace.rank, "This rank alone (pprof, collapsed, flamegraph)");
  AddOption(command, "--phase", args->trace.phase,
            "This phase alone, of sampled stacks (pprof, collapsed, flamegraph)");
  AddOption(command, "--source", args->trace.source,
            "Of a run with sampled stacks and a profiler's slices: sampled, trace, or both, each "
            "below a frame of its own (pprof, collapsed, flamegraph)")
      .OneOf({"both", "sampled", "trace"})
      .Default("both");
  AddOption(command, "--sample-type", args->trace.sample_type,
            "What collapsed stacks and flame graphs count: time, device, count or bytes")
      .OneOf({"time", "device", "count", "bytes"})
      .Default("time");
  AddFlag(command, "--no-counters", args->trace.no_counters,
          "Without metrics, scalars and events (chrome, perfetto)");
  AddOption(command, "--endpoint", args->endpoint,
            "Address of the receiver; OTLP: one without a path gets /v1/metrics "
            "(default OTEL_EXPORTER_OTLP_ENDPOINT)");
  AddOption(command, "--header", args->headers, "'Name: value' of each request to it (OTLP)")
      .OneEach();
  AddFlag(command, "--follow", args->follow, "Push again and again until the run is over");
  AddOption(command, "--interval", args->interval_s,
            "Seconds between two pushes, 1 to 3600 (default: OTLP 10, CloudWatch 60)")
      .Between(1, 3600);
  AddOption(command, "--region", args->region, "Of AWS (default AWS_REGION)");
  AddOption(command, "--namespace", args->name_space, "Of CloudWatch").Default("Telltale");
  AddOption(command, "--parent", args->parent, "Process to end with").Hidden();
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Export(*args); });
}

}  // namespace telltale::cli
