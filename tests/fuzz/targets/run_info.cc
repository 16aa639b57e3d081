// SPDX-License-Identifier: Apache-2.0
// run.json.
#include "store/run_info.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(run_info) {
  WriteInput(bytes, "run.json");
  const auto info = store::ReadRunInfo(ScratchRoot());
  if (info.ok()) static_cast<void>(store::DeriveRunState(*info, ScratchRoot()));
}

}  // namespace telltale::fuzz
