// SPDX-License-Identifier: Apache-2.0
// telltale import: a recording of another tool as a run directory.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "interchange/smdebug_import.h"

namespace telltale::cli {
namespace {

struct Args {
  std::string format;
  std::string path;
  std::string run;
  bool json = false;
};

int Import(const Args& args) {
  if (args.path.find("://") != std::string::npos) {
    return Fail("import", {Code::kUsage,
                           fmt::format("{} is no folder of this machine: copy it first, as with "
                                       "`aws s3 sync {} recording`, and name the copy",
                                       args.path, args.path)});
  }
  const auto report =
      interchange::ImportSmdebug(args.path, args.run, {.telltale_version = TELLTALE_VERSION});
  if (!report.ok()) return Fail("import", report.status());
  if (args.json) {
    const nlohmann::ordered_json result = {{"run", args.run},
                                           {"steps", report->steps},
                                           {"workers", report->workers},
                                           {"values", report->values},
                                           {"statistics", report->statistics},
                                           {"scalars", report->scalars},
                                           {"shapes", report->shapes},
                                           {"texts", report->texts},
                                           {"damaged", report->damaged},
                                           {"unknown_types", report->unknown_types},
                                           {"notes", report->notes}};
    Print("{}\n", DocumentText(result));
  } else {
    Print("{}: {} steps of {} workers: {} tensors in full, {} rows of statistics, {} scalars\n",
          Printable(args.run), report->steps, report->workers, report->values, report->statistics,
          report->scalars);
    for (const std::string& note : report->notes) Say("telltale import: {}\n", Printable(note));
  }
  if (report->damaged + report->unknown_types == 0) return 0;
  return Fail("import", {Code::kPartial,
                         fmt::format("{}: {} records or index files are damaged, {} tensors are of "
                                     "a type that a run cannot hold; the rest was imported",
                                     args.path, report->damaged, report->unknown_types)});
}

}  // namespace

void RegisterImport(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "import", "Make a run directory of another tool's recording",
                 "  telltale import smdebug /opt/ml/output/tensors -o telltale-runs/old\n"
                 "smdebug: what SageMaker Debugger's library saved; PATH is the hook's out_dir.",
                 {0, 3, 7});
  auto args = std::make_shared<Args>();
  AddOption(command, "FORMAT", args->format, "smdebug").Required().OneOf({"smdebug"});
  AddOption(command, "PATH", args->path, "Folder of the recording").Required();
  AddOption(command, "-o,--output", args->run, "Run directory to make").Required();
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Import(*args); });
}

}  // namespace telltale::cli
