// SPDX-License-Identifier: Apache-2.0
#include "cli/check_json.h"

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "report/causes.h"
#include "report/text.h"
#include "rules/finding_json.h"

namespace telltale::cli {
namespace {

nlohmann::ordered_json SalvageJson(const store::Salvage& salvage) {
  return {{"damaged_blocks", salvage.damaged_blocks},
          {"torn_tails", salvage.torn_tails},
          {"unreadable_files", salvage.unreadable_files},
          {"missing_rows", salvage.missing_rows},
          {"impossible_rows", salvage.impossible_rows},
          {"foreign_files", salvage.foreign_files},
          {"notes", salvage.notes}};
}

nlohmann::ordered_json CountsJson(const analysis::UsageCounts& all,
                                  const analysis::UsageCounts& loop) {
  const auto one = [](const analysis::UsageCounts& counts) {
    return nlohmann::ordered_json{{"samples", counts.samples},
                                  {"zero", counts.zero},
                                  {"below_half", counts.below_half},
                                  {"histogram", counts.histogram}};
  };
  return {{"run", one(all)}, {"loop", one(loop)}};
}

/// How the machine was used; what a notebook of SageMaker Debugger's profiler computes of it.
nlohmann::ordered_json UsageJson(const analysis::SystemUsage& usage) {
  const analysis::GpuTime time = usage.gpu_time();
  nlohmann::ordered_json out = {{"gpus", CountsJson(usage.gpus(), usage.gpus_in_loop())},
                                {"cores", CountsJson(usage.cores(), usage.cores_in_loop())},
                                {"gpu_time",
                                 {{"high", time.high},
                                  {"suboptimal", time.suboptimal},
                                  {"low", time.low},
                                  {"cpu_bottleneck", time.cpu_bottleneck},
                                  {"initialization", time.initialization},
                                  {"finalization", time.finalization}}},
                                {"unequal_gpus", nlohmann::ordered_json::array()}};
  for (const analysis::UnequalGpus& pair : usage.unequal()) {
    out["unequal_gpus"].push_back({{"a", pair.a}, {"b", pair.b}, {"distance", pair.distance}});
  }
  return out;
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
  if (replay.state.unrecorded) run["not_recorded_since_ns"] = replay.state.unrecorded->since_ns;
  if (std::string stopped = report::StoppedWords(data); !stopped.empty()) {
    run["stopped"] = std::move(stopped);
  }
  return run;
}

std::string DocumentText(const nlohmann::ordered_json& document) {
  return PrintableJson(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string CheckDocument(const report::RunData& data) {
  const rules::Replay& replay = data.replay;
  nlohmann::ordered_json out = {{"run", RunJson(data)},
                                {"verdict", report::Verdict(data)},
                                {"elapsed_seconds", data.elapsed_seconds()},
                                {"lost_seconds", data.lost_seconds()}};
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
  out["findings_left_out"] = replay.findings_left_out;
  out["groups"] = nlohmann::ordered_json::array();
  for (const report::Explanation& e : report::Explain(data)) {
    out["groups"].push_back(report::ToJson(data, e));
  }
  out["actions"] = nlohmann::ordered_json::array();
  for (const rules::ActionTaken& taken : replay.actions) {
    out["actions"].push_back({{"key", taken.key},
                              {"action", taken.action},
                              {"rule", taken.rule},
                              {"finding", taken.incident},
                              {"outcome", taken.outcome},
                              {"detail", taken.detail}});
  }
  out["rules"] = nlohmann::ordered_json::array();
  for (const rules::RuleState& r : replay.rules) out["rules"].push_back(rules::ToJson(r));
  out["usage"] = UsageJson(data.usage);
  out["salvage"] = SalvageJson(replay.salvage);
  out["losses"] = nlohmann::ordered_json::object();
  for (const auto& [name, total] : data.summary.ledger) {
    if (total.loss && total.value > 0) out["losses"][name] = total.value;
  }
  return DocumentText(out);
}

}  // namespace telltale::cli
