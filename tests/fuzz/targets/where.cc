// SPDX-License-Identifier: Apache-2.0
// The conditions of `telltale query --where`.
#include "fuzz.h"
#include "query/expression.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(where) {
  static const query::Table table(format::TableId::kSteps);
  const format::StepRow row{.seq = 5, .duration_ns = 250, .step = -3, .mode = "TRAIN"};
  const auto condition = query::Expression::Parse(bytes, table);
  if (condition.ok()) static_cast<void>((*condition)->Matches({"agent-a", &row}));
}

}  // namespace telltale::fuzz
