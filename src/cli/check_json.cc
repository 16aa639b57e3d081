// SPDX-License-Identifier: Apache-2.0
#include "cli/check_json.h"

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "report/causes.h"
#include "rules/finding_json.h"

namespace telltale::cli {
namespace {

nlohmann::ordered_json SalvageJson(const store::Salvage& salvage) {
  return {{"damaged_blocks", salvage.damaged_blocks},     {"torn_tails", salvage.torn_tails},
          {"unreadable_files", salvage.unreadable_files}, {"missing_rows", salvage.missing_rows},
          {"foreign_files", salvage.foreign_files},       {"notes", salvage.notes}};
}

}  // namespace

nlohmann::ordered_json RunJson(const report::RunData& data) {
  const rules::Replay& replay = data.replay;
  nlohmann::ordered_json run = {{"id", replay.info.id},
                                {"name", replay.info.name},
                                {"state", replay.state.state},
                                {"attempts", replay.info.attempts.size()},
                                {"steps", data.summary.train_steps()}};
  if (replay.state.exit_code) run["exit_code"] = *replay.state.exit_code;
  if (replay.state.signal) run["signal"] = *replay.state.signal;
  return run;
}

std::string JsonText(const nlohmann::ordered_json& document) {
  return PrintableJson(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string CheckDocument(const report::RunData& data) {
  const rules::Replay& replay = data.replay;
  nlohmann::ordered_json out = {{"run", RunJson(data)}};
  out["run_phases"] = nlohmann::ordered_json::array();
  const analysis::RunShares shares = data.summary.run_shares();
  for (std::size_t i = 0; i < analysis::kRunPhaseCount && shares.total > 0; ++i) {
    const auto phase = static_cast<analysis::RunPhase>(i);
    // What a run seldom has is there only where it has it.
    if (i > 2 && shares.seconds_of(phase) <= 0) continue;
    out["run_phases"].push_back({{"name", analysis::Name(phase)},
                                 {"seconds", shares.seconds_of(phase)},
                                 {"share", shares.share_of(phase)}});
  }
  out["findings"] = nlohmann::ordered_json::array();
  for (const rules::Finding& f : replay.findings) out["findings"].push_back(rules::ToJson(f));
  out["groups"] = nlohmann::ordered_json::array();
  for (const report::Explanation& e : report::Explain(data)) {
    out["groups"].push_back(report::ToJson(data, e));
  }
  out["rules"] = nlohmann::ordered_json::array();
  for (const rules::RuleState& r : replay.rules) out["rules"].push_back(rules::ToJson(r));
  out["salvage"] = SalvageJson(replay.salvage);
  out["losses"] = nlohmann::ordered_json::object();
  for (const auto& [name, total] : data.summary.ledger) {
    if (total.loss && total.value > 0) out["losses"][name] = total.value;
  }
  return JsonText(out);
}

}  // namespace telltale::cli
