// SPDX-License-Identifier: Apache-2.0
// What the process of a user's Python rule says.
#include "rules/python_report.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(python_report) {
  const auto report = rules::ParsePythonReport(bytes);
  if (!report.ok()) Require(!report.status().message().empty());
}

}  // namespace telltale::fuzz
