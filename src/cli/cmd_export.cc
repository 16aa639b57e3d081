// SPDX-License-Identifier: Apache-2.0
// telltale export: a run in another tool's format.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "interchange/tensorboard_export.h"

namespace telltale::cli {
namespace {

struct Args {
  std::string format;
  std::string run;
  std::string folder;
  bool statistics = false;
  bool json = false;
};

int Export(const Args& args) {
  const auto report =
      interchange::ExportTensorBoard(args.run, args.folder, {.statistics = args.statistics});
  if (!report.ok()) return Fail("export", report.status());
  if (args.json) {
    nlohmann::ordered_json result = {{"scalars", report->scalars},
                                     {"histograms", report->histograms},
                                     {"empty_histograms", report->empty_histograms},
                                     {"files", nlohmann::ordered_json::array()}};
    for (const auto& file : report->files) result["files"].push_back(file.string());
    Print("{}\n", JsonText(result));
  } else {
    Print("{} scalars and {} histograms in {} files: tensorboard --logdir {}\n", report->scalars,
          report->histograms, report->files.size(), Printable(args.folder));
  }
  if (!report->salvage.any()) return 0;
  return Fail("export", {Code::kPartial,
                         fmt::format("{}: part of the recording is damaged: the rest was exported: "
                                     "see `telltale verify {}`",
                                     args.run, args.run)});
}

}  // namespace

void RegisterExport(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "export", "Write a run in another tool's format",
                 "  telltale export tensorboard telltale-runs/20261120-150412-train -o logs\n"
                 "  telltale export tensorboard RUN -o logs --statistics\n"
                 "tensorboard: scalars and histograms as event files, a folder a mode and rank.",
                 {0, 3, 7, 8});
  auto args = std::make_shared<Args>();
  command->add_option("FORMAT", args->format, "tensorboard")
      ->required()
      ->check(CLI::IsMember({"tensorboard"}));
  command->add_option("RUN", args->run, "Run directory")->required();
  command->add_option("-o,--output", args->folder, "Folder to write to")->required();
  command->add_flag("--statistics", args->statistics,
                    "Mean, std, min, max, NaN and Inf counts of tensors too, as scalars");
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Export(*args); });
}

}  // namespace telltale::cli
