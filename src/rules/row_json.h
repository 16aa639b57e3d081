// SPDX-License-Identifier: Apache-2.0
// A record as a line of JSON for a rule in another process. Numbers that JSON has not are written
// as Python reads them: NaN, Infinity, -Infinity.
#pragma once
#include <cstdint>
#include <string>

#include "rules/rule.h"

namespace telltale::rules {

/// The tables whose records can be written.
std::uint32_t RowJsonTables();

/// Appends ["steps",ORD_NS,{"seq":1,...}]. False where the table is none of RowJsonTables().
bool AppendRowJson(const Record& record, std::string* out);

}  // namespace telltale::rules
