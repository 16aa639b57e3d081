// SPDX-License-Identifier: Apache-2.0
// The documents that several commands print: one place, so that a field means the same in each.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "report/load.h"

namespace telltale::cli {

/// The run as {id, name, state, attempts, steps, exit_code?, signal?}.
nlohmann::ordered_json RunJson(const report::RunData& data);
/// A document as it is printed: text from a damaged run may hold any bytes, and a terminal may show
/// it.
std::string DocumentText(const nlohmann::ordered_json& document);
/// What `check --json` prints and `run --json` writes.
std::string CheckDocument(const report::RunData& data);

}  // namespace telltale::cli
