// SPDX-License-Identifier: Apache-2.0
#include "judged.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "analysis/comparison.h"
#include "cli/check_json.h"
#include "format/bounds.h"
#include "fuzz.h"
#include "report/html.h"
#include "report/verdict.h"
#include "rules/engine.h"
#include "rules/groups.h"
#include "rules/registry.h"
#include "server/overview.h"
#include "server/run_view.h"
#include "store/reader.h"

namespace telltale::fuzz {
namespace {

std::vector<store::OrderedRecord> InOrder(format::Rows* rows) {
  std::vector<store::OrderedRecord> records;
  format::ForEachTable(*rows, [&](auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    std::erase_if(table, [](const Row& row) { return !format::InBounds(row); });
    for (const Row& row : table) records.push_back({row.ord_ns, 0, Row::kTable, &row});
  });
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.ord_ns < b.ord_ns; });
  return records;
}

/// Every rule there is, those too that run only where they are asked for.
rules::Engine EveryRule() {
  rules::RuleSet set;
  set.defaults = false;
  for (const rules::RuleEntry& entry : rules::Registry()) {
    rules::RuleSpec spec;
    spec.name = spec.rule = std::string(entry.desc->name);
    set.rules.push_back(std::move(spec));
  }
  auto engine = rules::Engine::Create(set);
  Require(engine.ok());
  return std::move(engine).value();
}

void Ask(const server::RunView& view) {
  const std::string overview = server::OverviewJson(view, {.id = "fuzz"});
  Require(nlohmann::json::accept(overview));
  std::size_t asked = 0;
  for (const server::MetricEntry& metric : view.metrics()) {
    if (++asked > 8) break;
    server::SeriesQuery query{.name = metric.name, .with_step = true};
    if (!metric.subjects.empty()) query.subject = metric.subjects.front();
    if (const auto series = view.SeriesJson(query); series.ok()) {
      Require(nlohmann::json::accept(*series));
    }
    static_cast<void>(view.Heatmap({.name = metric.name}));
  }
  for (const auto& [name, mode] : view.scalars()) {
    if (++asked > 16) break;
    if (const auto series = view.SeriesJson(
            {.kind = server::SeriesKind::kScalar, .name = name, .mode = mode, .points = 7});
        series.ok()) {
      Require(nlohmann::json::accept(*series));
    }
  }
  static_cast<void>(view.SeriesJson({.kind = server::SeriesKind::kSteps, .name = "duration"}));
}

}  // namespace

void JudgeRows(format::Rows* rows) {
  const std::vector<store::OrderedRecord> records = InOrder(rows);
  rules::Engine engine = EveryRule();
  server::RunView view;
  analysis::Summary half;
  for (std::size_t i = 0; i < records.size(); ++i) {
    view.OnRecord(records[i]);
    if (i < records.size() / 2) half.OnRecord(records[i]);
  }
  engine.Feed(records);
  engine.End();
  report::RunData& data = view.data;
  data.path = ScratchRoot();
  data.replay.info.id = data.replay.info.name = "fuzz";
  data.replay.info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 1});
  data.replay.state = {.state = "failed", .exit_code = 1};
  data.replay.ended = true;
  data.replay.findings = rules::Ranked(engine.findings());
  data.replay.rules = engine.rule_states();
  for (const rules::RuleState& state : data.replay.rules) {
    // A rule that threw, or that did what no rule may.
    Require(state.status != rules::RuleStatus::kError);
  }
  static_cast<void>(report::RenderReport(data));
  static_cast<void>(report::FormatVerdict(data, {.all = true}));
  Require(nlohmann::json::accept(cli::CheckDocument(data)));
  Ask(view);
  // More samples do the same again, and took a third of the time.
  static_cast<void>(analysis::Compare(half, data.summary, {.resamples = 20}));
}

}  // namespace telltale::fuzz
