// SPDX-License-Identifier: Apache-2.0
// Rows of a run that nobody vouches for, through all that reads rows: summary, causes, every rule,
// the verdict, the report, the documents of check, the page's JSON and a comparison.
#pragma once
#include "format/records.gen.h"

namespace telltale::fuzz {

/// Leaves out rows beyond the bounds, as every reader does, and judges the rest. Sorts `rows`.
void JudgeRows(format::Rows* rows);

}  // namespace telltale::fuzz
