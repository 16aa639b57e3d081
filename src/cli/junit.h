// SPDX-License-Identifier: Apache-2.0
// JUnit XML, as CI systems read it: a rule or a measure is a test case, a finding at or above the
// limit or a regression a failure. docs/guide/gate.md.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "report/load.h"
#include "rules/rule.h"

namespace telltale::cli {

struct JUnitCase {
  std::string name;
  std::string failure;  ///< Its heading; empty: it passed.
  std::string error;    ///< Likewise: it could not be judged by its own fault.
  std::string skipped;  ///< Likewise: there was nothing to judge.
  std::string text;     ///< Body of the failure, or what it printed.
};

/// A document of one suite. Text may hold anything: what XML does not take becomes U+FFFD.
std::string JUnitXml(std::string_view suite, const std::vector<JUnitCase>& cases);

/// One case a rule; findings below `limit` are printed, not failed.
std::vector<JUnitCase> CasesOf(const report::RunData& data, rules::Severity limit);

/// Whole or not at all. kIo says what to do.
Status WriteJUnit(const std::string& file, const std::string& xml);

}  // namespace telltale::cli
