// SPDX-License-Identifier: Apache-2.0
// Which actions this user has agreed to. A run names its actions, with their targets and with the
// names of the credentials that they use, and may be anybody's: copied, downloaded, of another
// user. An action acts only where the user has asked for the same one himself: with `telltale run`.
// docs/guide/actions.md.
//
// Thread-safe.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rules/consent.h"
#include "rules/rule_set.h"

namespace telltale::rules {

// Why an action does nothing, as its decision says it.
inline constexpr std::string_view kNotAgreed = "not agreed to";
inline constexpr std::string_view kSwitchedOff = "switched off";

class ActionConsent {
 public:
  /// $XDG_STATE_HOME/telltale/actions, else ~/.local/state/telltale/actions; empty where neither is
  /// set.
  static std::filesystem::path File();
  /// Of the user of this process, in File(), and what a process that started this one has passed
  /// on.
  static ActionConsent& OfUser();

  /// `file`: as of Consent.
  explicit ActionConsent(std::filesystem::path file) : consent_(std::move(file)) {}

  /// Whether a set has actions that act (dry_run = false).
  static bool Asks(const RuleSet& set);
  /// Those were asked for, for this process.
  void Allow(const RuleSet& set);
  /// The same, also for processes to come. kIo: it holds for this process alone, and why.
  Status Remember(const RuleSet& set);
  /// For the processes that this one starts, whatever became of the file. False: they are too many.
  /// REQUIRES: no other thread runs.
  static bool PassOn(const RuleSet& set);
  /// Empty: it may act, as the same kind, severity and parameters, each of them, were asked for.
  /// Else kNotAgreed or kSwitchedOff. TELLTALE_ACTIONS: "on" all may, "off" none.
  std::string_view WhyNot(const ActionSpec& spec) const;
  bool Has(const ActionSpec& spec) const { return WhyNot(spec).empty(); }

 private:
  Consent consent_;
};

/// One line for each action of these rules that would act and may not: what it would do, to whom
/// and with which credentials, why it does not, and how to agree.
std::vector<std::string> NotAgreedLines(const std::vector<RuleSpec>& rules,
                                        const ActionConsent& consent);

}  // namespace telltale::rules
