// SPDX-License-Identifier: Apache-2.0
// What the watcher of a run says, from its folder: findings in their newest revision, the state of
// each rule, what it cost. That folder is small: it needs no record of the training.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "rules/action_log.h"
#include "rules/engine.h"
#include "store/watch_log.h"

namespace telltale::rules {

class WatchedFindings {
 public:
  explicit WatchedFindings(std::filesystem::path run)
      : log_(std::move(run), store::MaskOf(format::TableId::kFindings)) {}

  /// Reads what is new; true where rows came in. `final`: as in WatchLog.
  bool Advance(bool final);
  store::WatchLog& log() { return log_; }

  /// Ranked. Those that only the end of the run closed are marked, as the watcher says it.
  std::vector<rules::Finding> findings(std::size_t* left_out = nullptr) const;
  std::vector<rules::RuleState> rules() const;
  const std::vector<rules::ActionTaken>& actions() const { return actions_.actions(); }
  std::uint64_t cpu_ns() const;

 private:
  void OnFinding(const format::FindingRow& row);
  void OnEvent(const format::EventRow& row);
  void OnStatus(const format::EventRow& row);
  void OnLedger(const format::LedgerRow& row);
  void OnRunEnd(const format::EventRow& row);
  bool IsWrongResult(const std::string& name) const;
  /// The built-in rule that runs by this name; null where it is one of the user's own.
  const RuleEntry* EntryOf(const std::string& name) const;

  store::WatchLog log_;
  std::map<std::string, rules::Finding> findings_;  ///< By incident.
  std::set<std::string> until_end_;                 ///< Incidents.
  std::map<std::string, rules::RuleState> rules_;
  rules::ActionLog actions_;
  std::map<std::string, std::uint64_t> records_;  ///< That a rule was given.
  std::map<std::int32_t, std::uint64_t> cpu_ns_;  ///< By the watcher's pid.
};

}  // namespace telltale::rules
