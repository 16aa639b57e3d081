// SPDX-License-Identifier: Apache-2.0
// Slices that nobody vouches for, through every analysis of `telltale analyze` and its output. The
// input's first byte says what is asked of them; the rest is a batch of rows, or two with kAgainst
// between them: the run and the one that it is compared with.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "analysis/trace/registry.h"
#include "base/string_pool.h"
#include "cli/analysis_print.h"
#include "format/batch.h"
#include "fuzz.h"
#include "stored_run.h"

namespace telltale::fuzz {
namespace {

constexpr std::string_view kAgainst = "\n--against--\n";

/// Each rank is loaded by itself, so that many of a few rows each cost much and show little.
constexpr std::size_t kMostRanks = 16;

bool FewRanks(std::string_view batch_bytes) {
  StringPool pool;
  format::Batch batch;
  if (!format::DecodeBatch(batch_bytes, &pool, &batch).ok()) return false;
  std::set<std::int32_t> ranks;
  for (const format::SliceRow& row : batch.rows.slices) ranks.insert(row.rank);
  return ranks.size() <= kMostRanks;
}

}  // namespace

TELLTALE_FUZZ_TARGET(trace_analyses) {
  using analysis::trace::Analyses;
  using analysis::trace::Analysis;
  using analysis::trace::TraceSource;
  if (bytes.size() < 2 || bytes.size() > (256U << 10)) return;
  const auto asked = static_cast<std::uint8_t>(bytes.front());
  bytes.remove_prefix(1);
  const std::size_t between = bytes.find(kAgainst);
  const std::string_view batch = bytes.substr(0, between);
  if (!FewRanks(batch)) return;
  const std::filesystem::path run = StoredRun(batch);
  analysis::trace::Options options;
  options.scope.last_step = (asked & 1) != 0;
  options.scope.everything = (asked & 2) != 0;
  options.series = (asked & 4) != 0;
  options.short_names = (asked & 8) != 0;
  if ((asked & 16) != 0) options.annotation.clear();
  if ((asked & 32) != 0) options.what_if = {"data=0", "launch=0", "aten::mm=0.5"};
  if ((asked & 64) != 0) options.full_queue = 0;
  options.device = (asked & 128) != 0 ? "gpu" : "all";
  if (between != std::string_view::npos) {
    const std::string_view other = bytes.substr(between + kAgainst.size());
    if (!FewRanks(other)) return;
    options.against = StoredRun(other, "against");
  } else {
    options.against = run;
    options.against_steps = {1};
  }
  options.min_length = 1;
  options.accelerator = "A100";
  for (const Analysis& one : Analyses()) {
    auto source = TraceSource::Open(run, {}, one.trace);
    if (!source.ok()) continue;
    // The one that looks at nothing without it.
    options.name = one.name == "sequences" ? "aten" : "";
    const auto tables = one.run(*source, options);
    if (!tables.ok()) continue;
    static_cast<void>(cli::AnalysisText(*tables));
    Require(nlohmann::json::accept(cli::AnalysisJson(*tables, one.name, "run")));
    for (const auto& table : tables->tables) static_cast<void>(cli::AnalysisCsv(table));
  }
}

}  // namespace telltale::fuzz
