// SPDX-License-Identifier: Apache-2.0
// telltale analyze RUN ANALYSIS: what a profiler's trace amounts to, one question at a time. The
// analyses are a table of src/analysis/trace/registry.h; docs/analyses.md defines them.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/trace/registry.h"
#include "base/printable.h"
#include "cli/analysis_print.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "report/text.h"

namespace telltale::cli {
namespace {

using analysis::trace::Analyses;
using analysis::trace::Analysis;
using analysis::trace::FindAnalysis;
using analysis::trace::Options;
using analysis::trace::Table;
using analysis::trace::Tables;
using analysis::trace::TraceSource;

struct AnalyzeArgs {
  std::string run;
  std::string analysis;
  std::vector<std::string> ranks;
  std::vector<std::string> steps;
  std::vector<std::string> against_steps;
  std::uint64_t top = 10;
  std::uint64_t min_length = 3;
  double idle_gap_us = 0.03;
  double runtime_cutoff_us = 50;
  double delay_cutoff_us = 100;
  std::string against;
  std::string table;
  bool json = false;
  bool csv = false;
  Options options;
};

/// "0,3,5": whole numbers.
template <class T>
Status ParseNumbers(std::string_view option, const std::vector<std::string>& texts,
                    std::vector<T>* out) {
  for (const std::string& text : texts) {
    T value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return {Code::kUsage,
              fmt::format("{}: '{}' is no whole number: give numbers, as 0,1", option, text)};
    }
    out->push_back(value);
  }
  return {};
}

std::int64_t Ns(double us) { return static_cast<std::int64_t>(us * 1000); }

std::string Names() {
  std::string out;
  for (const Analysis& one : Analyses()) {
    out += fmt::format("  {:<17} {}\n", one.name, one.summary);
  }
  return out;
}

int Analyze(const AnalyzeArgs& args) {
  const auto fail = [](const Status& status) { return Fail("analyze", status); };
  const Analysis* analysis = FindAnalysis(args.analysis);
  if (analysis == nullptr) {
    std::string known;
    for (const Analysis& one : Analyses()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    }
    return fail(
        {Code::kUsage, fmt::format("'{}' is no analysis: there are {}", args.analysis, known)});
  }
  Options options = args.options;
  options.top = args.top;
  options.min_length = args.min_length;
  options.idle_gap_ns = Ns(args.idle_gap_us);
  options.runtime_cutoff_ns = Ns(args.runtime_cutoff_us);
  options.delay_cutoff_ns = Ns(args.delay_cutoff_us);
  for (const Status& status :
       {ParseNumbers("--rank", args.ranks, &options.ranks),
        ParseNumbers("--steps", args.steps, &options.steps),
        ParseNumbers("--against-steps", args.against_steps, &options.against_steps)}) {
    if (!status.ok()) return fail(status);
  }
  RunsOrTraces traces;
  std::string run = args.run;
  std::string against = args.against;
  for (std::string* const path : {&run, &against}) {
    if (path->empty()) continue;
    if (const Status opened = traces.OpenRun("analyze", path); !opened.ok()) return fail(opened);
  }
  options.against = against;
  auto source = TraceSource::Open(run, options.ranks, analysis->trace);
  if (!source.ok()) return fail(source.status());
  auto tables = analysis->run(*source, options);
  if (!tables.ok()) return fail(tables.status());
  tables->notes.insert(tables->notes.end(), source->notes().begin(), source->notes().end());
  if (args.csv) {
    const Table* table = tables->tables.empty() ? nullptr : &tables->tables.front();
    std::string known;
    for (const Table& one : tables->tables) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
      if (one.name == args.table) table = &one;
    }
    if (table == nullptr || (!args.table.empty() && table->name != args.table)) {
      return fail({Code::kUsage, fmt::format("--table: {} has no table '{}': there are {}",
                                             args.analysis, args.table, known)});
    }
    const std::string text = AnalysisCsv(*table);
    WriteOut(::isatty(STDOUT_FILENO) == 1 ? PrintableLines(text) : text);
  } else if (args.json) {
    Print("{}\n", AnalysisJson(*tables, args.analysis, args.run));
  } else {
    WriteOut(AnalysisText(*tables));
  }
  const std::string damage = report::Damage(source->salvage());
  if (damage.empty()) return traces.ExitCode("analyze", 0);
  return fail({Code::kPartial, fmt::format("{}: {}", args.run, damage)});
}

}  // namespace

void RegisterAnalyze(CLI::App& app, Context* context) {
  auto args = std::make_shared<AnalyzeArgs>();
  Options& options = args->options;
  CLI::App* command = AddCommand(
      app, "analyze", "Answer one question about the trace of a profiler",
      "  telltale analyze RUN step-breakdown\n"
      "  telltale analyze worker0.pt.trace.json.gz gpu\n"
      "  telltale analyze RUN critical-path --instance 2 --what-if data=0 --what-if aten::mm=0.5\n"
      "  telltale analyze RUN diff --against OTHER --device gpu --short-names\n"
      "  telltale analyze RUN kernels --rank 0,1 --csv --table kernels > kernels.csv\n"
      "Analyses:\n" +
          Names() +
          "Definitions and sources: docs/analyses.md. The last step that a trace marks is left out "
          "where its kernels\nmay be missing: --last-step counts it. A column's name ends in its "
          "unit; a share is between 0 and 1 in JSON and CSV.",
      {0, 3, 4, 7, 8});
  AddOption(command, "RUN", args->run, "Run directory, or a profiler's trace").Required();
  AddOption(command, "ANALYSIS", args->analysis, "Which question, see below").Required();
  AddOption(command, "--rank", args->ranks, "Only these ranks").SeparatedBy(',');
  AddOption(command, "--top", args->top,
            "Rows of a ranking that the terminal shows, 10 by default");
  AddFlag(command, "--last-step", options.scope.last_step, "Count the last marked step too");
  AddFlag(command, "--everything", options.scope.everything,
          "Count every slice, also those whose launch or step the trace does not have");
  AddFlag(command, "--series", options.series,
          "launches, queue, memory-bandwidth, critical-path: every single value too");
  AddOption(command, "--idle-gap", args->idle_gap_us,
            "idle: microseconds below which a gap is a kernel wait, 0.03 by default")
      .Between(0.0, 1e9);
  AddOption(command, "--runtime-cutoff", args->runtime_cutoff_us,
            "launches: microseconds above which a call is an outlier, 50 by default")
      .Between(0.0, 1e9);
  AddOption(command, "--delay-cutoff", args->delay_cutoff_us,
            "launches: microseconds above which a delay is an outlier, 100 by default")
      .Between(0.0, 1e9);
  AddOption(command, "--full-queue", options.full_queue,
            "queue: launches outstanding with which it is full, 1024 by default")
      .NotNegative();
  AddOption(command, "--name", options.name,
            "sequences, op-kernels: part of the operators' names, their begin for op-kernels");
  AddOption(command, "--min-length", args->min_length,
            "sequences: kernels that one has at least, 3 by default");
  AddOption(command, "--annotation", options.annotation,
            "critical-path: part of the name of its window, ProfilerStep by default, '' for all");
  AddOption(command, "--instance", options.instance,
            "critical-path: which of the slices of that name, from 0")
      .NotNegative();
  AddOption(command, "--what-if", options.what_if,
            "critical-path: what a step takes if this cost less: data=0, launch=0, aten::mm=0.5")
      .OneEach();
  AddOption(command, "--against", args->against, "diff: the run, or trace, compared with this one");
  AddOption(command, "--steps", args->steps,
            "diff: steps compared, the first by default; stragglers: steps judged")
      .SeparatedBy(',');
  AddOption(command, "--against-steps", args->against_steps,
            "diff: steps of the other run, those of --steps by default")
      .SeparatedBy(',');
  AddOption(command, "--device", options.device, "diff: slices of the cpu, the gpu or all")
      .OneOf({"cpu", "gpu", "all"});
  AddFlag(command, "--short-names", options.short_names,
          "diff: names without arguments and template arguments");
  AddOption(command, "--accelerator", options.accelerator,
            "roofline: the device, for example A100: its peaks are known");
  AddOption(command, "--precision", options.precision,
            "roofline: the peak that counts, tf32 by default")
      .OneOf({"fp32", "tf32", "half", "fp8"});
  AddOption(command, "--peak-tflops", options.peak_tflops,
            "roofline: the peak, instead of the table's")
      .Between(0.0, 1e9);
  AddFlag(command, "--csv", args->csv, "Print one table as CSV");
  AddOption(command, "--table", args->table, "The table for --csv, the first by default");
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Analyze(*args); });
}

}  // namespace telltale::cli
