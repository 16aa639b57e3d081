// SPDX-License-Identifier: Apache-2.0
// Runs on disk that a rule script has written, for rules that compare a run with others: folders
// beside each other in one of its own, which is removed with it.
#pragma once
#include <filesystem>
#include <string>

#include "base/status.h"
#include "format/batch.h"

namespace telltale::rules {

class ScriptRuns {
 public:
  ScriptRuns() = default;
  ~ScriptRuns();
  ScriptRuns(const ScriptRuns&) = delete;
  ScriptRuns& operator=(const ScriptRuns&) = delete;

  /// A finished run with these rows. kUsage: the name is no name of a folder, or there is one.
  Status Save(const std::string& name, format::Rows rows);
  /// Where the run of the script itself would be, beside the others.
  std::string own_folder();

 private:
  std::filesystem::path folder_;  ///< Empty: not made yet.
};

}  // namespace telltale::rules
