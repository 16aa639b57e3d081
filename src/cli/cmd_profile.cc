// SPDX-License-Identifier: Apache-2.0
// telltale profile: what a run's time and memory went to, by operator, scope, call, line, kernel or
// module; tfprof's options under their names. docs/guide/profile.md.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/profile/build.h"
#include "analysis/profile/options.h"
#include "analysis/profile/pipeline.h"
#include "analysis/profile/print.h"
#include "analysis/profile/view.h"
#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "cli/stack_walk.h"
#include "interchange/export_file.h"
#include "interchange/timeline_export.h"
#include "store/folder.h"

namespace telltale::cli {
namespace {

namespace profile = analysis::profile;
namespace fs = std::filesystem;

/// A list of four lines says nothing.
constexpr std::int64_t kListDepth = 25;

struct Args {
  std::string run;
  std::string view = "op";
  profile::OptionTexts options;
  std::int64_t step = -1;
  std::optional<std::int64_t> rank;
  bool sum = false;
  std::string output = "stdout";
  bool json = false;
};

/// What the numbers are of.
std::string Heading(const Args& args, const profile::Profile& built) {
  std::string out = args.step >= 0 ? fmt::format("step {}", args.step)
                    : args.sum || built.steps == 0
                        ? "sums"
                        : fmt::format("average of {} steps", built.steps);
  out += fmt::format(" of {} slices", built.slices);
  if (built.outside > 0) {
    out += args.step >= 0
               ? fmt::format(", {} of other steps or none left out", built.outside)
               : fmt::format(", {} outside of steps left out (--sum has them)", built.outside);
  }
  if (built.unplaced > 0) out += fmt::format(", {} kernels without a launch", built.unplaced);
  if (built.tree.folded() > 0) {
    out += fmt::format(", {} slices without a line of their own", built.tree.folded());
  }
  return out;
}

Status WritePprof(const profile::Profile& built, const profile::Shown& root,
                  const profile::Options& options, const std::string& path) {
  const std::vector<SampleValue> values = SampleValuesOf(options);
  std::vector<interchange::SampleType> types;
  for (const SampleValue& one : values) types.push_back(one.type);
  interchange::PprofProfile pprof(types, types.size() > 1 ? 1 : 0);
  std::vector<std::int64_t> sample(values.size());
  WalkShown(built.tree, root,
            [&](std::span<const std::string_view> frames, const profile::Stats& own) {
              for (std::size_t i = 0; i < values.size(); ++i) {
                sample[i] = SampleOf(values[i].value(own));
              }
              pprof.Add(frames, sample);
            });
  TELLTALE_ASSIGN_OR_RETURN(const auto file,
                            interchange::ExportFile::Create(fs::absolute(path), true));
  return pprof.Write(file.get());
}

void NamesOf(const profile::Tree& tree, const profile::Shown& node,
             std::set<std::string, std::less<>>* names) {
  names->insert(std::string(tree.node(node.id).name));
  for (const profile::Shown& child : node.children) NamesOf(tree, child, names);
}

/// tfprof writes one to `outfile_step`.
Result<std::vector<fs::path>> WriteTimelines(const Args& args, const profile::View& view,
                                             const profile::Profile& built,
                                             const profile::Shown& root, const std::string& path) {
  interchange::TimelineOptions options;
  if (args.step >= 0) options.step = args.step;
  options.path = [&](std::int64_t step) { return fs::absolute(fmt::format("{}_{}", path, step)); };
  std::set<std::string, std::less<>> names;
  NamesOf(built.tree, root, &names);
  // Nodes of the other views are no operators.
  if (&view == &profile::kOpView || &view == &profile::kScopeView ||
      &view == &profile::kGraphView) {
    options.keeps = [names = std::move(names)](const format::SliceRow& slice) {
      return slice.device >= 0 || names.contains(slice.name);
    };
  }
  TELLTALE_ASSIGN_OR_RETURN(auto report, interchange::ExportTimelines(args.run, options));
  return std::move(report.files);
}

int Profiled(const Args& args) {
  const profile::View* const view = profile::FindView(args.view);
  profile::OptionTexts texts = args.options;
  if (texts.max_depth < 0) texts.max_depth = view->list ? kListDepth : 4;
  const auto options = profile::Options::Parse(texts);
  if (!options.ok()) return Fail("profile", options.status());
  const auto output = profile::Output::Parse(args.output);
  if (!output.ok()) return Fail("profile", output.status());
  profile::BuildOptions build{.step = args.step, .sum = args.sum};
  if (args.rank) build.rank = static_cast<std::int32_t>(*args.rank);
  build.input_shapes = options->Selects(profile::Column::kInputShapes);
  build.parameters = options->Selects(profile::Column::kParams);
  build.tensor_values = options->Selects(profile::Column::kTensorValue);
  const auto built = profile::BuildProfile(args.run, *view, build);
  if (!built.ok()) return Fail("profile", built.status());
  const profile::Shown root = profile::Choose(built->tree, view->list, *options);

  using Kind = profile::Output::Kind;
  auto files = nlohmann::ordered_json::array();
  Status written;
  if (output->kind == Kind::kFile) {
    written = store::ReplaceFile(fs::absolute(output->file),
                                 profile::ProfileText(*built, *view, root, *options));
    files.push_back(output->file);
  } else if (output->kind == Kind::kPprof) {
    written = WritePprof(*built, root, *options, output->file);
    files.push_back(output->file);
  } else if (output->kind == Kind::kTimeline) {
    const auto timelines = WriteTimelines(args, *view, *built, root, output->file);
    written = timelines.status();
    if (timelines.ok()) {
      for (const fs::path& file : *timelines) files.push_back(file.string());
    }
  }
  if (!written.ok()) return Fail("profile", written);
  if (args.json) {
    auto document = profile::ProfileJson(*built, *view, root, *options);
    if (!files.empty()) document["files"] = files;
    if (output->kind != Kind::kNone) Print("{}\n", DocumentText(document));
  } else if (output->kind == Kind::kStdout) {
    Print("{}\n", Heading(args, *built));
    WriteOut(profile::ProfileText(*built, *view, root, *options));
    if (root.children.empty()) {
      Say("telltale profile: nothing to show: a node of this view is {}, and the run has none: "
          "choose "
          "another --view, or record or import a profiler's trace\n",
          view->what);
    }
  } else {
    for (const auto& file : files) Print("{}\n", Printable(file.get<std::string>()));
  }
  if (!built->salvage.any()) return 0;
  return Fail("profile", {Code::kPartial,
                          fmt::format("{}: part of the recording is damaged: the rest was used: "
                                      "see `telltale verify {}`",
                                      args.run, args.run)});
}

void AddLeast(CLI::App* command, const char* name, double* value, const char* what) {
  AddOption(command, fmt::format("--{}", name), *value, fmt::format("Hide what has less {}", what))
      .Default("0");
}

}  // namespace

void RegisterProfile(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(
      app, "profile", "Show what time and memory went to",
      "  telltale profile RUN --view op --select micros,bytes,occurrence --order_by micros\n"
      "  telltale profile RUN --view scope --max_depth 6 --min_micros 1000\n"
      "  telltale profile trace.json.gz --view kernel\n"
      "  telltale profile RUN --view op --account_type_regexes '.*task:1/.*'   # rank 1 alone\n"
      "  telltale profile RUN --view code --output pprof:outfile=run.pb.gz\n"
      "  telltale profile RUN --view graph --step 5 --output timeline:outfile=step\n"
      "Options have tfprof's names and do what they do there, in its order: account, start, trim, "
      "show and hide, print. Lists are separated by commas; a regular expression has to match the "
      "whole name.",
      {0, 3, 7, 8});
  auto args = std::make_shared<Args>();
  args->options.max_depth = -1;
  AddOption(command, "RUN", args->run, "Run directory, or a profiler's trace").Required();
  AddOption(command, "--view", args->view, "op, scope, graph, code, kernel or module")
      .OneOf({"op", "scope", "graph", "code", "kernel", "module"})
      .Default("op");
  AddOption(command, "--max_depth", args->options.max_depth,
            "Levels of a tree, the root included, or lines of a list (default: 4, 25)")
      .NotNegative();
  AddLeast(command, "min_bytes", &args->options.min_bytes, "requested bytes");
  AddLeast(command, "min_peak_bytes", &args->options.min_peak_bytes, "bytes at its peak");
  AddLeast(command, "min_residual_bytes", &args->options.min_residual_bytes, "bytes left over");
  AddLeast(command, "min_output_bytes", &args->options.min_output_bytes, "bytes given");
  AddLeast(command, "min_micros", &args->options.min_micros, "time of host and device, in us");
  AddLeast(command, "min_accelerator_micros", &args->options.min_accelerator_micros,
           "time of the device, in us");
  AddLeast(command, "min_cpu_micros", &args->options.min_cpu_micros, "time of the host, in us");
  AddLeast(command, "min_params", &args->options.min_params, "parameters");
  AddLeast(command, "min_float_ops", &args->options.min_float_ops, "floating-point operations");
  AddLeast(command, "min_occurrence", &args->options.min_occurrence, "runs");
  AddOption(command, "--step", args->step, "This step alone (default -1: the average of all)")
      .Default("-1");
  AddOption(command, "--rank", args->rank, "This rank alone");
  AddFlag(command, "--sum", args->sum, "Sums over the run, not averages over its steps");
  AddOption(command, "--order_by", args->options.order_by,
            "name, bytes, peak_bytes, residual_bytes, output_bytes, micros, accelerator_micros, "
            "cpu_micros, params, float_ops or occurrence")
      .Default("micros");
  AddOption(command, "--account_type_regexes", args->options.account_type_regexes,
            "Only nodes of such a type count: operator, category, device, Variable")
      .Default(".*");
  AddOption(command, "--start_name_regexes", args->options.start_name_regexes,
            "Begin with nodes of such a name")
      .Default(".*");
  AddOption(command, "--trim_name_regexes", args->options.trim_name_regexes,
            "Leave out nodes of such a name and all below them");
  AddOption(command, "--show_name_regexes", args->options.show_name_regexes,
            "Show nodes of such a name alone")
      .Default(".*");
  AddOption(command, "--hide_name_regexes", args->options.hide_name_regexes,
            "Hide nodes of such a name")
      .Default(args->options.hide_name_regexes);
  AddFlag(command, "--account_displayed_op_only", args->options.account_displayed_op_only,
          "Sums are of what is shown");
  AddOption(
      command, "--select", args->options.select,
      "Columns: bytes, micros, params, float_ops, tensor_value, device, op_types, occurrence, "
      "input_shapes, accelerator_micros, cpu_micros, peak_bytes, residual_bytes, output_bytes")
      .Default("micros,occurrence");
  AddOption(command, "--output", args->output,
            "stdout, file:outfile=F, timeline:outfile=F, pprof:outfile=F or none")
      .Default("stdout");
  AddJson(command, &args->json);
  OnRun(command, context,
        [args] { return WithRun("profile", &args->run, [args] { return Profiled(*args); }); });
}

}  // namespace telltale::cli
