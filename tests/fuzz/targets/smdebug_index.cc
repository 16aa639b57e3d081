// SPDX-License-Identifier: Apache-2.0
// Index files and collections of SageMaker Debugger.
#include "interchange/smdebug_index.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(smdebug_index) {
  const auto path = WriteInput(bytes, "smdebug/collections/000000000/worker_0_collections.json");
  static_cast<void>(interchange::ReadIndex(path));
  static_cast<void>(interchange::ReadCollections(ScratchRoot() / "smdebug"));
  static_cast<void>(interchange::ParseReduction(bytes));
}

}  // namespace telltale::fuzz
