// SPDX-License-Identifier: Apache-2.0
#include "cli/export_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "analysis/profile/build.h"
#include "base/given_name.h"
#include "cli/output.h"
#include "cli/stack_walk.h"
#include "interchange/chrome_export.h"
#include "interchange/export_file.h"
#include "interchange/flame_graph.h"
#include "interchange/perfetto_export.h"
#include "interchange/speedscope_export.h"
#include "interchange/stack_samples.h"
#include "interchange/table_export.h"
#include "interchange/timeline_export.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;
using interchange::ExportFile;

constexpr std::array<std::string_view, 9> kTraceFormats = {"chrome",   "perfetto",  "speedscope",
                                                           "pprof",    "collapsed", "flamegraph",
                                                           "timeline", "parquet",   "csv"};

bool IsText(std::string_view format) {
  return format == "chrome" || format == "speedscope" || format == "collapsed" ||
         format == "flamegraph" || format == "csv";
}

Result<std::unique_ptr<ExportFile>> FileOf(const TraceExport& what) {
  if (what.output.empty()) {
    return ExportFile::To([](std::string_view piece) { return WriteOut(piece); });
  }
  const bool gzip =
      what.format == "pprof" || (what.format != "csv" && what.output.ends_with(".gz"));
  return ExportFile::Create(fs::absolute(what.output), gzip);
}

Result<Exported> Trace(const TraceExport& what) {
  TELLTALE_ASSIGN_OR_RETURN(const auto file, FileOf(what));
  const interchange::TraceExportOptions options{.counters = !what.no_counters};
  Result<interchange::TraceExportReport> report =
      what.format == "chrome" ? interchange::ExportChrome(what.run, file.get(), options)
      : what.format == "perfetto"
          ? interchange::ExportPerfetto(what.run, file.get(), options)
          : interchange::ExportSpeedscope(
                what.run, fs::absolute(what.run).lexically_normal().filename().string(), file.get(),
                options);
  TELLTALE_RETURN_IF_ERROR(report.status());
  return Exported{
      fmt::format("{} slices, {} values of metrics and scalars, {} events", report->slices,
                  report->counters, report->events),
      {{"slices", report->slices}, {"counters", report->counters}, {"events", report->events}},
      report->salvage};
}

/// That there are sampled stacks and such a phase, where they are asked for.
Status CheckPhase(const TraceExport& what, const analysis::profile::Profile& profile) {
  if (what.phase.empty() && what.source != "sampled") return {};
  if (!profile.sampled) {
    return {Code::kUsage, fmt::format("{} is for runs with sampled stacks: record one with "
                                      "`telltale run --stacks`",
                                      what.phase.empty() ? "--source sampled" : "--phase")};
  }
  if (what.phase.empty()) return {};
  const analysis::profile::Tree& tree = profile.tree;
  std::set<std::string_view> phases;
  for (const auto thread : tree.node(analysis::profile::kRoot).children) {
    for (const auto phase : tree.node(thread).children) phases.insert(tree.node(phase).name);
  }
  if (phases.contains(what.phase)) return {};
  return {Code::kUsage, fmt::format("no phase '{}' in what was sampled; there are: {}", what.phase,
                                    fmt::join(phases, ", "))};
}

interchange::FlameGraphText FlameText(const TraceExport& what,
                                      const analysis::profile::Profile& profile,
                                      std::string_view unit) {
  const std::string name = fs::absolute(what.run).lexically_normal().filename().string();
  std::string of = !profile.sampled ? "slices of a profiler and spans"
                   : profile.traced
                       ? "sampled stacks of the whole run and, beside them, windows of detail"
                       : "sampled stacks: thread, phase, then the frames of Python";
  if (!what.phase.empty()) of += ", phase " + what.phase;
  if (what.step) of += fmt::format(", step {}", *what.step);
  if (what.rank) of += fmt::format(", rank {}", *what.rank);
  return {name, of, std::string(unit)};
}

Result<Exported> Stacks(const TraceExport& what) {
  using analysis::profile::Stats;
  analysis::profile::BuildOptions build;
  build.step = what.step.value_or(-1);
  if (what.rank) build.rank = static_cast<std::int32_t>(*what.rank);
  build.sum = !what.step;
  using analysis::profile::SliceSource;
  if (!what.phase.empty() && what.source == "trace") {
    return {Code::kUsage, "--phase is of sampled stacks: leave out --source trace"};
  }
  // Only these have phases.
  build.source = what.source == "trace"                            ? SliceSource::kTrace
                 : what.source == "sampled" || !what.phase.empty() ? SliceSource::kSampled
                                                                   : SliceSource::kBoth;
  TELLTALE_ASSIGN_OR_RETURN(
      const auto profile,
      analysis::profile::BuildProfile(what.run, analysis::profile::kStackView, build));
  TELLTALE_RETURN_IF_ERROR(CheckPhase(what, profile));
  // Of sampled stacks the first two frames are the thread and the phase.
  const auto wanted = [&](std::span<const std::string_view> frames) {
    return what.phase.empty() || (frames.size() > 1 && frames[1] == what.phase);
  };
  TELLTALE_ASSIGN_OR_RETURN(const auto file, FileOf(what));
  const std::vector<SampleValue>& values = StackSampleValues();
  std::uint64_t stacks = 0;
  const auto chosen = std::find_if(values.begin(), values.end(), [&](const SampleValue& one) {
    return one.type.name == what.sample_type;
  });
  if (what.format == "flamegraph") {
    interchange::FlameGraph graph;
    WalkStacks(profile.tree, [&](std::span<const std::string_view> frames, const Stats& own) {
      if (wanted(frames)) graph.Add(frames, SampleOf(chosen->value(own)));
    });
    stacks = graph.stacks();
    TELLTALE_RETURN_IF_ERROR(graph.Write(FlameText(what, profile, chosen->type.unit), file.get()));
  } else if (what.format == "collapsed") {
    std::string piece;
    Status failed;
    WalkStacks(profile.tree, [&](std::span<const std::string_view> frames, const Stats& own) {
      const std::int64_t value = wanted(frames) ? SampleOf(chosen->value(own)) : 0;
      stacks += value != 0;
      piece.clear();
      interchange::AppendCollapsed(frames, value, &piece);
      if (failed.ok()) failed = file->Append(piece);
    });
    TELLTALE_RETURN_IF_ERROR(failed);
    TELLTALE_RETURN_IF_ERROR(file->Commit());
  } else {
    std::vector<interchange::SampleType> types;
    for (const SampleValue& one : values) types.push_back(one.type);
    interchange::PprofProfile pprof(types, 0);
    pprof.Comment(fmt::format("telltale export pprof {}", AsGiven(what.run)));
    std::vector<std::int64_t> sample(values.size());
    WalkStacks(profile.tree, [&](std::span<const std::string_view> frames, const Stats& own) {
      if (!wanted(frames)) return;
      for (std::size_t i = 0; i < values.size(); ++i) sample[i] = SampleOf(values[i].value(own));
      pprof.Add(frames, sample);
    });
    stacks = pprof.samples();
    TELLTALE_RETURN_IF_ERROR(pprof.Write(file.get()));
  }
  return Exported{fmt::format("{} stacks of {} slices", stacks, profile.slices),
                  {{"stacks", stacks}, {"slices", profile.slices}},
                  profile.salvage};
}

Result<Exported> Timelines(const TraceExport& what) {
  const fs::path folder = fs::absolute(what.output);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return {Code::kIo, fmt::format("cannot create {}: {}", folder.string(), error.message())};
  }
  interchange::TimelineOptions options;
  options.step = what.step;
  options.path = [&](std::int64_t step) { return folder / fmt::format("timeline-{}.json", step); };
  TELLTALE_ASSIGN_OR_RETURN(const auto report, interchange::ExportTimelines(what.run, options));
  auto files = nlohmann::ordered_json::array();
  for (const fs::path& file : report.files) files.push_back(file.string());
  return Exported{fmt::format("{} steps with {} slices, {} slices of no step left out",
                              report.files.size(), report.slices, report.outside),
                  {{"files", files}, {"slices", report.slices}, {"outside", report.outside}},
                  report.salvage};
}

Result<Exported> OneTable(const TraceExport& what) {
  if (what.format == "parquet") {
    TELLTALE_ASSIGN_OR_RETURN(
        const auto report,
        interchange::ExportParquet(what.run, what.table, fs::absolute(what.output)));
    return Exported{fmt::format("{} rows", report.rows), {{"rows", report.rows}}, report.salvage};
  }
  TELLTALE_ASSIGN_OR_RETURN(const auto file, FileOf(what));
  TELLTALE_ASSIGN_OR_RETURN(const auto report,
                            interchange::ExportCsv(what.run, what.table, file.get()));
  return Exported{what.table, {{"table", what.table}}, report.salvage};
}

}  // namespace

bool IsTraceFormat(std::string_view format) {
  return std::find(kTraceFormats.begin(), kTraceFormats.end(), format) != kTraceFormats.end();
}

Result<Exported> WriteExport(const TraceExport& what) {
  const bool table = what.format == "parquet" || what.format == "csv";
  if (table && what.table.empty()) {
    return {Code::kUsage, "no table: write --table NAME, for example --table steps"};
  }
  if (what.output.empty() && (!IsText(what.format) || what.json)) {
    return {Code::kUsage, what.format == "timeline" ? "no folder to write to: write -o DIR"
                                                    : "no file to write to: write -o FILE"};
  }
  if (table) return OneTable(what);
  if (what.format == "timeline") return Timelines(what);
  if (what.format == "pprof" || what.format == "collapsed" || what.format == "flamegraph") {
    return Stacks(what);
  }
  return Trace(what);
}

}  // namespace telltale::cli
