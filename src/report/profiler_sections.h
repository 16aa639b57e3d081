// SPDX-License-Identifier: Apache-2.0
// What the profiler rules add to the report: sentences and charts of what they saw, from their
// summaries. SageMaker Debugger's report has the same sections; each is left out where its rule did
// not run or saw nothing.
#pragma once
#include <string>

#include "report/load.h"

namespace telltale::report {

// HTML, with all texts of the run escaped; empty where there is nothing to say.

/// Section 2: how well each node's cores and GPUs were used.
std::string UsageVerdict(const RunData& data);
/// Section 3: shares of the modes and of what lies between steps; forward against backward.
std::string ModeWords(const RunData& data);
/// Section 4: the most expensive operation of each category.
std::string OperationWords(const RunData& data);
/// Section 5: of the rules that fired, what they look for and what helps.
std::string RuleAdvice(const RunData& data);
/// Section 6: initialization, GPU utilization, balance, data loading, batch size, cores, storage,
/// GPU memory.
std::string ProfilerSections(const RunData& data);

}  // namespace telltale::report
