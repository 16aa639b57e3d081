// SPDX-License-Identifier: Apache-2.0
// What the actions of a run have done, from the events of its watchers (docs/formats/events.md):
// what page, report and verdict say beside a finding.
//
// Thread safety: none.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::rules {

/// One action of one finding, as far as it has come.
struct ActionTaken {
  std::string key;       ///< Of finding and action: what receivers know it by.
  std::string action;    ///< Its kind: "stop", "webhook", ...
  std::string rule;      ///< The name in findings.
  std::string incident;  ///< Finding::id.
  /// "pending" until it is known; then "done", "failed", "unknown"; where nothing was to be done
  /// why: "dry run", "cool-down", ...
  std::string outcome = "pending";
  std::string detail;  ///< What was done, or why it failed; one line.
};

class ActionLog {
 public:
  /// Actions that are kept; what is decided after that is left out.
  static constexpr std::size_t kMost = 2'000;

  static bool IsOurs(std::string_view kind) { return kind.starts_with("action."); }

  /// An event of the watcher's journal, in its order. What cannot be read is left out.
  void OnEvent(std::string_view kind, std::string_view data);
  /// In the order in which they were decided.
  const std::vector<ActionTaken>& actions() const { return actions_; }

 private:
  std::vector<ActionTaken> actions_;
  std::map<std::string, std::size_t, std::less<>> by_key_;  ///< Index into actions_.
};

}  // namespace telltale::rules
