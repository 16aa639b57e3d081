// SPDX-License-Identifier: Apache-2.0
// telltale doctor [FOLDER]: what this machine allows, and what then happens.
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
#include "cli/doctor.h"
#include "cli/output.h"

namespace telltale::cli {
namespace {

int Doctor(const std::string& folder, bool json) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return Fail("doctor", Status(Code::kUnusable,
                                 fmt::format("{}: no such folder: give the one that runs would be "
                                             "written to",
                                             folder)));
  }
  DoctorOptions options;
  options.folder = folder;
  const std::vector<Check> checks = Examine(options);
  const bool records = std::none_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.finding == Finding::kStops;
  });
  if (json) {
    nlohmann::ordered_json out = {
        {"version", TELLTALE_VERSION}, {"records", records}, {"checks", nlohmann::json::array()}};
    for (const Check& check : checks) {
      out["checks"].push_back({{"name", check.name},
                               {"finding", Name(check.finding)},
                               {"found", check.found},
                               {"effect", check.effect}});
    }
    Print("{}\n", DocumentText(out));
  } else {
    for (const Check& check : checks) {
      Print("{:<8} {:<14} {}\n{:<23} → {}\n", Name(check.finding), check.name,
            Printable(check.found), "", check.effect);
    }
    Print("\n{}\n", records ? "telltale run records here."
                            : "telltale run cannot record here: see what stops it above.");
  }
  return records ? 0 : static_cast<int>(Code::kUnusable);
}

}  // namespace

void RegisterDoctor(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "doctor", "Say what this machine allows, and what then happens",
                 "  telltale doctor\n  telltale doctor /data/runs --json", {0, 3});
  auto folder = std::make_shared<std::string>(".");
  auto json = std::make_shared<bool>(false);
  AddOption(command, "FOLDER", *folder, "Where runs would be written (default: the current one)");
  AddJson(command, json.get());
  OnRun(command, context, [folder, json] { return Doctor(*folder, *json); });
}

}  // namespace telltale::cli
