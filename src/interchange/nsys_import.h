// SPDX-License-Identifier: Apache-2.0
// Nsight Systems' export to SQLite (`nsys export --type sqlite`). docs/formats/imports.md.
#pragma once
#include <filesystem>
#include <string_view>

#include "base/status.h"
#include "interchange/trace_source.h"

namespace telltale::interchange {

/// Any SQLite database; whether it is Nsight's shows when it is opened.
bool LooksLikeSqlite(std::string_view bytes);

/// What is damaged is counted in `source`; kUnusable where no table of Nsight's can be read.
Status ImportNsys(const std::filesystem::path& file, TraceSource* source);

}  // namespace telltale::interchange
