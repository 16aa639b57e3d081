// SPDX-License-Identifier: Apache-2.0
// A run whose journal holds rows that nobody vouches for, through all that opens a run directory:
// readers, check, the listing, verify and the metrics that are exported.
#include <filesystem>

#include "fuzz.h"
#include "run_readers.h"
#include "stored_run.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(stored_rows) {
  if (bytes.empty() || bytes.size() > (1U << 20)) return;
  const std::filesystem::path run = StoredRun(bytes);
  CheckRun(run);
  MeasureRun(run);
}

}  // namespace telltale::fuzz
