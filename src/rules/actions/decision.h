// SPDX-License-Identifier: Apache-2.0
// Decides what a finding sets off: each action of its rule at most once an incident, whoever dies
// when, since what was decided is recalled from the journal.
//
// Thread safety: none. The decision depends on its arguments alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/actions/action_consent.h"
#include "rules/engine.h"
#include "rules/rule_set.h"

namespace telltale::rules {

struct Moment {
  std::int64_t run_ns = 0;    ///< The run's clock: cool-down and waiting count by it.
  std::int64_t unix_ns = 0;   ///< The wall's: silence ends by it.
  bool over = false;          ///< The training has ended.
  std::uint32_t attempt = 0;  ///< Of the run; 0: not known.
};

struct Decision {
  std::string key;        ///< incident-action: what it is known by, also to receivers.
  std::string action_id;  ///< ActionId of the spec.
  ActionSpec spec;
  Finding finding;
  std::int64_t due_ns = 0;    ///< By the run's clock.
  std::int64_t unix_ns = 0;   ///< When it was decided.
  std::uint32_t attempt = 0;  ///< And in which attempt of the run; 0: not known.
  /// Empty: it acts. Else why not: "dry run", "not agreed to", "switched off", "silenced",
  /// "cool-down", "the training has ended", "too many wait".
  std::string held;
};

inline constexpr std::string_view kDryRun = "dry run";
inline constexpr std::string_view kCoolDown = "cool-down";

class Decider {
 public:
  /// Of Resolve(): each rule with its actions. `consent`: which of them the user has agreed to;
  /// null: to all. REQUIRES: CheckAction of all is ok.
  explicit Decider(const std::vector<RuleSpec>& rules, const ActionConsent* consent = nullptr);

  /// One that a watcher before us has decided.
  void Recall(const std::string& key, const std::string& rule, const std::string& action_id,
              const std::string& held, std::int64_t run_ns);
  /// What these revisions set off, in their order. Of an incident its newest revision counts: one
  /// that is over by now stops nothing.
  std::vector<Decision> Decide(const std::vector<Finding>& revisions, const Moment& now);

  /// Null: the rule has no such action (any more).
  const ActionSpec* Find(const std::string& rule, const std::string& action_id) const;
  /// Empty: it may act. Else why not; kNotAgreed where there is no such action.
  std::string_view WhyNot(const std::string& rule, const std::string& action_id) const;
  /// Findings that only counted since this was asked last.
  std::size_t TakeHeld(const std::string& rule, const std::string& action_id);

 private:
  struct Action {
    std::string id;
    ActionSpec spec;
    std::string_view why_not;  ///< Of ActionConsent.
  };
  using RuleAction = std::pair<std::string, std::string>;  ///< Rule and action_id.

  const Action* FindAction(const std::string& rule, const std::string& action_id) const;
  std::string WhyHeld(const Action& action, const Finding& finding, const Moment& now) const;
  void Note(const Action& action, const std::string& rule, const std::string& held,
            std::int64_t run_ns);

  std::map<std::string, std::vector<Action>, std::less<>> actions_;  ///< By rule.
  std::set<std::string> decided_;                                    ///< Keys.
  /// When the last was decided that began a group, by the run's clock.
  std::map<RuleAction, std::int64_t> acted_ns_;
  std::map<RuleAction, std::size_t> held_;
};

/// Whether `text` is what `pattern` says; * is any text, ? one byte.
bool Matches(std::string_view pattern, std::string_view text);

}  // namespace telltale::rules
