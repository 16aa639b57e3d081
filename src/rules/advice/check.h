// SPDX-License-Identifier: Apache-2.0
// What a check of `telltale advise` is: one function that looks at a run's facts and says what it
// finds. One check a file in checks/, one line in checks.inc; nothing else knows it.
//
// Deterministic, as rules are. Severity: low from the peer's "moderate" threshold, medium from its
// "high" one, high where a fifth of the time or more is lost to one cause; info where nothing is
// lost.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/saturate.h"
#include "rules/advice/facts.h"
#include "rules/builtin/numbers.h"
#include "rules/engine.h"

namespace telltale::rules::advice {

/// A finding in the making.
struct Advised {
  Severity severity = Severity::kInfo;
  std::string about;  ///< Beside the rank, where a check says several things of one: "modules".
  std::string title;  ///< What, in a few words.
  nlohmann::ordered_json evidence = nlohmann::ordered_json::object();
  std::string cause;
  std::string advice;
  double cost_seconds = 0;  ///< In the recorded steps.
  double share = 0;         ///< Of the steps' time, 0 to 1.
  std::string assumption;   ///< Of the cost, a sentence without a point.
  double confidence = 0.8;
};

/// Takes what a check finds.
class Findings {
 public:
  explicit Findings(std::string_view check) : check_(check) {}
  void Add(const RankFacts& rank, Advised advised);
  /// Of a node or the whole run.
  void Add(std::string subject, Advised advised);
  std::vector<Finding> Take() { return std::move(out_); }
  std::size_t size() const { return out_.size(); }

 private:
  void Put(Incident incident, Advised advised);

  std::string_view check_;
  std::vector<Finding> out_;
};

struct Check {
  std::string_view name;
  std::string_view asks;   ///< One line.
  std::string_view peers;  ///< Whose checker it is, or does the work of.
  /// Thresholds and figures, in words.
  std::string_view formula;
  /// The rule that says the same of a live run; empty where there is none.
  std::string_view rule;
  /// kNoData or kNotApplicable where it cannot judge; else it has judged.
  RuleStatus (*look)(const RunFacts& run, Findings* out);
};

inline double Seconds(Sum ns) { return static_cast<double>(ns) / 1e9; }
inline std::string Percent(double share) { return Plain(100 * share) + " %"; }
inline double ShareOf(Sum part, Sum whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}
/// 1.25 ms, 3.2 s.
std::string TimeWords(Sum ns);
/// Low from `some`, medium from `much`, high from a fifth where that is more.
Severity SeverityOf(double share, double much);

/// Whether any of the words occurs in the text.
bool HasAny(std::string_view text, std::initializer_list<std::string_view> words);

/// Sum over the names that `is` is true of, of devices (`on_device`) or of the host.
template <class Is>
Sum TimeOf(const RankFacts& rank, bool on_device, Is&& is) {
  Sum sum = 0;
  for (const NameTotal& name : rank.names) {
    if (name.on_device == on_device && is(name)) sum += on_device ? name.total_ns : name.self_ns;
  }
  return sum;
}

// One declaration a check, defined in checks/.
#define TELLTALE_CHECK(name) extern const Check k##name;
#include "rules/advice/checks.inc"
#undef TELLTALE_CHECK

/// Calls `look` with each rank that has steps and, where asked for, a device. What Check::look
/// returns.
template <class Look>
RuleStatus EachRank(const RunFacts& run, bool needs_device, Look&& look) {
  bool steps = false;
  bool judged = false;
  for (const RankFacts& rank : run.ranks) {
    if (!rank.has_steps()) continue;
    steps = true;
    if (needs_device && !rank.has_device()) continue;
    judged = true;
    look(rank);
  }
  if (!steps) return RuleStatus::kNoData;
  return judged ? RuleStatus::kNoIssuesFound : RuleStatus::kNotApplicable;
}

}  // namespace telltale::rules::advice
