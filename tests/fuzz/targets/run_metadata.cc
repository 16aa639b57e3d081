// SPDX-License-Identifier: Apache-2.0
// TensorFlow's RunMetadata and StepStats.
#include "importing.h"
#include "interchange/step_stats_import.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(run_metadata) {
  static_cast<void>(interchange::LooksLikeRunMetadata(bytes));
  static_cast<void>(interchange::LooksLikeStepStats(bytes));
  TryImport(bytes, interchange::ImportStepStats);
}

}  // namespace telltale::fuzz
