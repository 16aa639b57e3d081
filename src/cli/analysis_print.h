// SPDX-License-Identifier: Apache-2.0
// The tables of an analysis as people read them, as JSON and as CSV.
#pragma once
#include <string>
#include <string_view>

#include "analysis/trace/tables.h"

namespace telltale::cli {

/// Columns in line, long names shortened in the middle, durations and shares as words; tables that
/// show less than they have say so.
std::string AnalysisText(const analysis::trace::Tables& tables);

/// {"analysis": ..., "run": ..., "tables": {name: [{column: value}]}, "notes": [...]}; null for a
/// value that is not known.
std::string AnalysisJson(const analysis::trace::Tables& tables, std::string_view analysis,
                         std::string_view run);

/// RFC 4180, with a header line; empty fields for values that are not known.
std::string AnalysisCsv(const analysis::trace::Table& table);

}  // namespace telltale::cli
