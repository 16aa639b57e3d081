// SPDX-License-Identifier: Apache-2.0
// report.html: one file that opens without a network, a script or a request, in light and dark.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "report/load.h"
#include "report/stack_graph.h"

namespace telltale::report {

std::string RenderReport(const RunData& data, const std::vector<StackGraph>& stacks = {});
/// What process `pid` writes before it is renamed to `out`.
std::filesystem::path PartialPath(const std::filesystem::path& out, int pid);
/// Written beside its name and renamed: a reader sees the old report or the new one. With the
/// stacks of the run at `data.path`.
Status WriteReport(const RunData& data, const std::filesystem::path& out);

}  // namespace telltale::report
