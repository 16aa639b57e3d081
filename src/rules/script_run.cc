// SPDX-License-Identifier: Apache-2.0
#include "rules/script_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::rules {

ScriptRuns::~ScriptRuns() {
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

std::string ScriptRuns::own_folder() { return folder_.empty() ? "" : (folder_ / "this").string(); }

Status ScriptRuns::Save(const std::string& name, format::Rows rows) {
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') {
    return Status(Code::kUsage, fmt::format("'{}' is no name of a run", name));
  }
  std::error_code error;
  if (folder_.empty()) {
    std::string made =
        (std::filesystem::temp_directory_path(error) / "telltale-script-XXXXXX").string();
    if (::mkdtemp(made.data()) == nullptr) {
      return Status(Code::kUnusable, fmt::format("cannot make a folder like {}", made));
    }
    folder_ = made;
  }
  const std::filesystem::path run = folder_ / name;
  if (!std::filesystem::create_directory(run, error)) {
    return Status(Code::kUsage, fmt::format("the run {} was saved before", name));
  }
  store::RunInfo info{.id = name, .name = name};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2});
  info.attempts.back().exit_code = 0;
  info.finished = true;
  TELLTALE_RETURN_IF_ERROR(store::WriteRunInfo(run, info));
  TELLTALE_ASSIGN_OR_RETURN(const auto writer,
                            store::Writer::Open(run / "agent-script", "agent-script"));
  format::Batch batch;
  format::ForEachTable(rows, [&](const auto& table) {
    for (const auto& row : table) batch.watermark_ns = std::max(batch.watermark_ns, row.ord_ns);
  });
  batch.rows = std::move(rows);
  TELLTALE_RETURN_IF_ERROR(writer->Append(std::move(batch)));
  return writer->Close(true);
}

}  // namespace telltale::rules
