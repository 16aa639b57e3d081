// SPDX-License-Identifier: Apache-2.0
// What CreateXgboostReport adds to the report: the parts of SageMaker Debugger's XGBoost report, of
// the rule's summary. Left out where the rule did not run or saw nothing.
#pragma once
#include <string>

#include "report/load.h"

namespace telltale::report {

/// HTML, with all texts of the run escaped: label distribution, metrics by round, importances,
/// confusion matrix, evaluation, accuracy by round, ROC curve, residuals of each model.
std::string BoostingSections(const RunData& data);

}  // namespace telltale::report
