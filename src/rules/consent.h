// SPDX-License-Identifier: Apache-2.0
// What this user has agreed to, line by line: a file of the user's own, beside which only this
// process's memory counts. A run names rules in Python and actions, and may be anybody's: copied,
// downloaded, of another user. What it names is done only where the user has asked for the same
// before. python_consent.h and action_consent.h say what a line holds.
//
// Thread-safe. Memory: what was agreed to in this process, and the file while it is read.
#pragma once
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::rules {

class Consent {
 public:
  /// Beyond, what was agreed to first is forgotten.
  static constexpr std::uint64_t kMostFileBytes = 256U << 10U;

  /// $XDG_STATE_HOME/telltale/NAME, else ~/.local/state/telltale/NAME; empty where neither is set.
  static std::filesystem::path FileOf(std::string_view name);

  /// `file`: who may write it decides what is done; only one of this user, that nobody else can
  /// write, is believed. Empty: nothing outlives this process.
  explicit Consent(std::filesystem::path file) : file_(std::move(file)) {}

  /// For this process. Lines hold no line break.
  void Allow(const std::vector<std::string>& lines);
  /// Also for processes to come. kIo: it holds for this process alone, and why.
  Status Remember(std::vector<std::string> lines);
  bool Has(const std::string& line) const;

 private:
  /// Lines of the file; none where it is not to be believed.
  std::vector<std::string> ReadLines() const;
  Status Add(const std::vector<std::string>& lines) const;

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::set<std::string> allowed_;
};

}  // namespace telltale::rules
