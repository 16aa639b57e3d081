// SPDX-License-Identifier: Apache-2.0
// telltale version: which build this is and which formats it reads.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/output.h"
#include "format/records.gen.h"
#include "store/run_info.h"

namespace telltale::cli {

void RegisterVersion(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "version", "Print the version and the formats it reads",
                                 "  telltale version\n  telltale version --json", {0});
  auto json = std::make_shared<bool>(false);
  AddJson(command, json.get());
  OnRun(command, context, [json] {
    if (*json) {
      const nlohmann::ordered_json out = {
          {"version", TELLTALE_VERSION},
          {"run_format", fmt::format("{}.{}", store::kRunFormatMajor, store::kRunFormatMinor)},
          {"record_schema", format::kRecordSchemaVersion}};
      Print("{}\n", out.dump(2));
    } else {
      Print("telltale {} · run format {}.{} · record schema {}\n", TELLTALE_VERSION,
            store::kRunFormatMajor, store::kRunFormatMinor, format::kRecordSchemaVersion);
    }
    return 0;
  });
}

}  // namespace telltale::cli
