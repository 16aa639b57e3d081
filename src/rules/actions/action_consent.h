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

/// Why an action that was not agreed to does nothing, as its decision says it.
inline constexpr std::string_view kNotAgreed = "not agreed to";

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

  /// The actions of a set that act (dry_run = false) were asked for, also for processes to come.
  /// kIo: it holds for this process alone, and why.
  Status Remember(const RuleSet& set);
  /// For the processes that this one starts, whatever became of the file. REQUIRES: no other thread
  /// runs.
  static void PassOn(const RuleSet& set);
  /// Whether it may act: the same kind, severity and parameters, each of them, were asked for.
  /// TELLTALE_ACTIONS: "on" all may, "off" none.
  bool Has(const ActionSpec& spec) const;

 private:
  Consent consent_;
};

/// One line for each action of these rules that would act and may not: what it would do, to whom
/// and with which credentials, and how to agree.
std::vector<std::string> NotAgreedLines(const std::vector<RuleSpec>& rules,
                                        const ActionConsent& consent);

}  // namespace telltale::rules
