// SPDX-License-Identifier: Apache-2.0
// A piece of py-spy's recording, and the slices made of it.
#include <vector>

#include "fuzz.h"
#include "stacks/py_spy_trace.h"
#include "stacks/sampled_slices.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(py_spy) {
  const auto trace = stacks::ParsePySpyTrace(bytes, "/home/ada");
  if (!trace.ok()) {
    Require(trace.status().code() == Code::kUnusable);
    return;
  }
  StringPool pool;
  stacks::PhaseClock clock;
  stacks::MakeSlices(*trace, {.start_ns = 1'700'000'000'000'000'000, .period_ns = 50'000'000}, {},
                     &clock, &pool, [](std::vector<format::SliceRow>* rows) {
                       for (const format::SliceRow& row : *rows) {
                         Require(row.duration_ns >= 0 && !row.name.empty());
                       }
                       rows->clear();
                     });
}

}  // namespace telltale::fuzz
