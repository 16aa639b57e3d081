// SPDX-License-Identifier: Apache-2.0
// telltale import: recordings of other tools as a run directory; windows of a run into itself.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/import_progress.h"
#include "cli/output.h"
#include "cli/report_keeper.h"
#include "cli/windows_keeper.h"
#include "interchange/import.h"
#include "interchange/smdebug_import.h"
#include "interchange/windows/window_import.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

constexpr std::string_view kSmdebug = "smdebug";

struct Args {
  std::vector<std::string> paths;
  std::string format;
  std::string run;
  std::string windows;  ///< A run whose own windows are imported.
  int beside = 0;       ///< Pid of the watcher that started us; 0: by hand.
  bool all = false;
  int max_memory_mib = 2048;
  bool json = false;
};

std::vector<std::string> FormatNames() {
  std::vector<std::string> names = {std::string(kSmdebug)};
  for (const interchange::Importer& importer : interchange::Importers()) {
    names.emplace_back(importer.name);
  }
  return names;
}

int ImportTensors(const Args& args) {
  if (args.paths.size() != 1) {
    return Fail("import", {Code::kUsage,
                           "a recording of tensors by SageMaker Debugger is one "
                           "folder: name the hook's out_dir"});
  }
  const std::string& path = args.paths.front();
  const auto report =
      interchange::ImportSmdebug(path, args.run, {.telltale_version = TELLTALE_VERSION});
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
                                     path, report->damaged, report->unknown_types)});
}

std::string RanksText(const std::vector<std::int32_t>& ranks) {
  if (ranks.size() != 1) return fmt::format("{} ranks", ranks.size());
  return fmt::format("rank {}", ranks.front());
}

int ImportTraces(const Args& args) {
  interchange::ImportRequest request{
      .run = args.run, .format = args.format, .telltale_version = TELLTALE_VERSION};
  request.paths.assign(args.paths.begin(), args.paths.end());
  request.limits.memory_bytes = static_cast<std::uint64_t>(args.max_memory_mib) << 20;
  ImportProgress progress(args.paths);
  const auto summary = interchange::ImportFiles(request);
  progress.End();
  if (!summary.ok()) return Fail("import", summary.status());
  std::string lost;
  nlohmann::ordered_json counters = nlohmann::ordered_json::array();
  for (const auto& counter : summary->counters) {
    counters.push_back({{"name", counter.name},
                        {"subject", counter.subject},
                        {"value", counter.value},
                        {"loss", counter.loss}});
    if (!counter.loss) continue;
    lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", counter.name, counter.value);
  }
  if (args.json) {
    const nlohmann::ordered_json result = {
        {"run", args.run},           {"format", summary->format},    {"ranks", summary->ranks},
        {"slices", summary->slices}, {"steps", summary->steps},      {"metrics", summary->metrics},
        {"events", summary->events}, {"other", summary->other_rows}, {"counters", counters},
        {"notes", summary->notes}};
    Print("{}\n", DocumentText(result));
  } else {
    Print("{}: {} slices, {} steps, {} metrics of {} ({})\n", Printable(args.run), summary->slices,
          summary->steps, summary->metrics, RanksText(summary->ranks), summary->format);
    for (const std::string& note : summary->notes) Say("telltale import: {}\n", Printable(note));
  }
  if (!summary->partial()) return 0;
  return Fail("import",
              {Code::kPartial, fmt::format("{}: part of it could not be taken as it is ({}): the "
                                           "rest was imported: the table ledger has the counts",
                                           args.paths.front(), lost)});
}

/// By hand what failed before is tried again. Beside a training what is not written whole yet is
/// left, and the exit code says so.
int ImportOwnWindows(const Args& args) {
  if (args.beside != 0 && !BecomeReportChild(args.beside)) return 0;
  interchange::WindowImportRequest request{.run = args.windows,
                                           .telltale_version = TELLTALE_VERSION,
                                           .again = args.beside == 0,
                                           .all = args.all};
  request.limits.memory_bytes = static_cast<std::uint64_t>(args.max_memory_mib) << 20;
  if (args.beside == 0) {
    const auto info = store::ReadRunInfo(args.windows);
    if (!info.ok()) return Fail("import", info.status());
    request.all = store::DeriveRunState(*info, args.windows).state != "running";
  }
  const auto report = interchange::ImportWindows(request);
  if (!report.ok()) return Fail("import", report.status());
  std::uint64_t slices = 0;
  std::uint64_t imported = 0;
  std::string failure;
  bool partial = false;
  nlohmann::ordered_json windows = nlohmann::ordered_json::array();
  for (const auto& one : report->windows) {
    windows.push_back({{"folder", one.folder},
                       {"window", one.window},
                       {"mode", one.mode},
                       {"rank", one.rank},
                       {"first", one.first},
                       {"last", one.last},
                       {"slices", one.slices},
                       {"failure", one.failure}});
    slices += one.slices;
    partial = partial || one.partial;
    if (one.failure.empty()) {
      ++imported;
    } else if (failure.empty()) {
      failure = one.failure;
    }
  }
  if (args.json) {
    const nlohmann::ordered_json result = {{"run", args.windows},
                                           {"windows", std::move(windows)},
                                           {"before", report->before},
                                           {"waiting", report->waiting}};
    Print("{}\n", DocumentText(result));
  } else if (args.beside == 0) {
    Print("{}: {} windows imported, {} slices; {} were before, {} are being written\n",
          Printable(args.windows), imported, slices, report->before, report->waiting);
  }
  if (args.beside != 0) return report->waiting > 0 ? kExitWindowsWait : 0;
  if (!failure.empty()) {
    return Fail("import", {Code::kPartial,
                           fmt::format("{} windows of {} could not be imported: {}",
                                       report->windows.size() - imported, args.windows, failure)});
  }
  if (!partial) return 0;
  return Fail("import", {Code::kPartial, fmt::format("{}: part of its windows could not be taken "
                                                     "as it is: the table ledger has the counts",
                                                     args.windows)});
}

int Import(Args args) {
  if (!args.windows.empty()) {
    if (args.paths.empty() && args.run.empty() && args.format.empty()) {
      return ImportOwnWindows(args);
    }
    return Fail("import", {Code::kUsage,
                           "--windows imports what a run itself has recorded, into that run: name "
                           "no FILES, no --output and no --format"});
  }
  if (args.paths.empty() || args.run.empty()) {
    return Fail("import", {Code::kUsage,
                           "name FILES and with -o the run directory to make of them, or with "
                           "--windows a run whose windows are to be imported"});
  }
  const std::vector<std::string> formats = FormatNames();
  const auto known = [&](const std::string& word) {
    return std::find(formats.begin(), formats.end(), word) != formats.end();
  };
  std::error_code ignored;
  // The format may also stand first, as in `import smdebug PATH`.
  if (args.format.empty() && args.paths.size() > 1 && known(args.paths.front()) &&
      !std::filesystem::exists(args.paths.front(), ignored)) {
    args.format = args.paths.front();
    args.paths.erase(args.paths.begin());
  }
  for (const std::string& path : args.paths) {
    if (path.find("://") == std::string::npos) continue;
    return Fail("import", {Code::kUsage,
                           fmt::format("{} is no folder of this machine: copy it first, as with "
                                       "`aws s3 sync {} recording`, and name the copy",
                                       path, path)});
  }
  if (args.format == kSmdebug) return ImportTensors(args);
  return ImportTraces(args);
}

}  // namespace

void RegisterImport(CLI::App& app, Context* context) {
  std::string lines;
  for (const interchange::Importer& importer : interchange::Importers()) {
    lines += fmt::format("\n{}: {}", importer.name, importer.summary);
  }
  CLI::App* command = AddCommand(
      app, "import", "Make a run directory of other tools' recordings",
      "  telltale import trace.pt.trace.json.gz -o telltale-runs/traced\n"
      "  telltale import rank0.json.gz rank1.json.gz -o telltale-runs/ranks\n"
      "  telltale import smdebug /opt/ml/output/tensors -o telltale-runs/old\n"
      "  telltale import --windows telltale-runs/20261120-150412-train\n"
      "The format shows by the content; --format, or its name before the files, says it.\n"
      "smdebug: tensors that SageMaker Debugger's library saved; the hook's out_dir." +
          lines,
      {0, 3, 7, 8, 9});
  auto args = std::make_shared<Args>();
  AddOption(command, "FILES", args->paths, "Files or folders of one format, a file a rank");
  AddOption(command, "-o,--output", args->run, "Run directory to make");
  AddOption(command, "--windows", args->windows,
            "Run whose own windows of detail are imported into it, where that was not done yet");
  AddOption(command, "--format", args->format, "Format of the files").OneOf(FormatNames());
  AddOption(command, "--max-memory", args->max_memory_mib,
            "Address space that reading the files may take, in MiB")
      .Between(256, 1 << 20)
      .Default("2048");
  AddOption(command, "--beside", args->beside, "Pid of the watcher").Hidden();
  AddFlag(command, "--all", args->all, "Also windows that nobody has ended").Hidden();
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Import(*args); });
}

}  // namespace telltale::cli
