// SPDX-License-Identifier: Apache-2.0
// The formats of `telltale export` that hold a timeline, stacks or a table: chrome, perfetto,
// speedscope, pprof, collapsed, flamegraph, timeline, parquet, csv.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::cli {

struct TraceExport {
  std::string format;
  std::string run;
  std::string output;  ///< Empty: stdout, where the format is text.
  std::string table;
  std::string sample_type = "time";
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> rank;
  std::string phase;            ///< Of sampled stacks; empty: all.
  std::string source = "both";  ///< Of stacks: both, sampled, trace.
  bool no_counters = false;
  bool json = false;
};

/// What was written, in words and for programs.
struct Exported {
  std::string words;
  nlohmann::ordered_json result;
  store::Salvage salvage;
};

bool IsTraceFormat(std::string_view format);

/// Writes it and says nothing of it.
Result<Exported> WriteExport(const TraceExport& what);

}  // namespace telltale::cli
