// SPDX-License-Identifier: Apache-2.0
// telltale smdebug-path: the folder which, on PYTHONPATH, makes `import smdebug` Telltale's.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/status.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"

namespace telltale::cli {

void RegisterSmdebugPath(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(
      app, "smdebug-path", "Print the folder that serves scripts written for SageMaker Debugger",
      "  PYTHONPATH=$(telltale smdebug-path) telltale run -- python train.py", {0, 3});
  auto json = std::make_shared<bool>(false);
  AddJson(command, json.get());
  OnRunStatus(command, context, [program = context->program, json]() -> Status {
    const std::filesystem::path folder =
        std::filesystem::path(program).parent_path().parent_path() / "lib/telltale/smdebug";
    std::error_code error;
    if (!std::filesystem::exists(folder / "smdebug/__init__.py", error)) {
      return {
          Code::kUnusable,
          fmt::format("no package smdebug in {}: the installation is incomplete: install it again",
                      folder.string())};
    }
    if (*json) {
      nlohmann::ordered_json out;
      out["path"] = folder.string();
      Print("{}\n", DocumentText(out));
    } else {
      Print("{}\n", folder.string());
    }
    return {};
  });
}

}  // namespace telltale::cli
