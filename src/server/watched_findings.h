// SPDX-License-Identifier: Apache-2.0
// What the watcher of a run says, from its folder: findings in their newest revision, the state of
// each rule, what it cost. That folder is small: it needs no record of the training.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rules/engine.h"
#include "store/watch_log.h"

namespace telltale::server {

class WatchedFindings {
 public:
  explicit WatchedFindings(std::filesystem::path run)
      : log_(std::move(run), store::MaskOf(format::TableId::kFindings)) {}

  /// Reads what is new; true where rows came in. `final`: as in WatchLog.
  bool Advance(bool final);
  store::WatchLog& log() { return log_; }

  /// Ranked. Of a run that ended at `run_end_ns`, those that were closed only by that are marked;
  /// 0: it goes on.
  std::vector<rules::Finding> findings(std::int64_t run_end_ns) const;
  std::vector<rules::RuleState> rules() const;
  std::uint64_t cpu_ns() const;

 private:
  struct Newest {
    rules::Finding finding;
    std::int64_t closed_ns = 0;  ///< When the watcher closed it.
  };
  void OnFinding(const format::FindingRow& row);
  void OnEvent(const format::EventRow& row);

  store::WatchLog log_;
  std::map<std::string, Newest> findings_;  ///< By incident.
  std::map<std::string, rules::RuleState> rules_;
  std::map<std::int32_t, std::uint64_t> cpu_ns_;  ///< By the watcher's pid.
};

}  // namespace telltale::server
