// SPDX-License-Identifier: Apache-2.0
// One line that a rule in another process wrote: what it reports, or that it is done.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rules/rule.h"

namespace telltale::rules {

struct PythonReport {
  enum class Kind : std::uint8_t { kReady, kReport, kClose, kRecover, kDone, kError };
  Kind kind = Kind::kDone;
  Incident incident;                ///< Of kReport; of kClose and kRecover its subject alone.
  std::string error;                ///< Of kError.
  std::vector<std::string> tables;  ///< Of kReady: what the rule reads.
  std::string summary, advice;      ///< Of kReady.
  bool wrong_result = false;        ///< Of kReady.
};

/// kUnusable: it is none, and why.
Result<PythonReport> ParsePythonReport(std::string_view line);

}  // namespace telltale::rules
