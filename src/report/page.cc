// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"
#include "report/text.h"

namespace telltale::report {

std::string RenderReport(const RunData& data) { return Verdict(data); }

}  // namespace telltale::report
