// SPDX-License-Identifier: Apache-2.0
// Which rules in Python this user has asked for. A run names the rules that judge it, so that a
// replay says what was said live, and a run may be anybody's: copied, downloaded, of another user.
// Code that a run names is run only where the user has asked for that same code himself before.
// docs/guide/custom-rules.md.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "rules/consent.h"
#include "rules/rule_set.h"

namespace telltale::rules {

class PythonConsent {
 public:
  static constexpr std::uint64_t kMostFileBytes = Consent::kMostFileBytes;

  /// $XDG_STATE_HOME/telltale/python-rules, else ~/.local/state/telltale/python-rules; empty where
  /// neither is set.
  static std::filesystem::path File();
  /// Of the user of this process, in File().
  static PythonConsent& OfUser();

  /// `file`: as of Consent.
  explicit PythonConsent(std::filesystem::path file) : consent_(std::move(file)) {}

  /// Whether a set has rules in Python.
  static bool Asks(const RuleSet& set);
  /// Those were asked for, for this process.
  void Allow(const RuleSet& set);
  /// The same, also for processes to come. kIo: it holds for this process alone, and why.
  Status Remember(const RuleSet& set);
  /// Whether the file, class and parameters (host_python, host_log too) were asked for.
  bool Has(const RuleSpec& spec) const;

 private:
  Consent consent_;
};

}  // namespace telltale::rules
