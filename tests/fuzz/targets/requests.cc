// SPDX-License-Identifier: Apache-2.0
// A request that a reader has left in a run.
#include "store/requests.h"

#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(requests) {
  WriteInput(bytes, "requests/who/0123456789abcdef0123456789abcdef.json");
  store::RequestReader reader(ScratchRoot());
  const auto found = reader.Poll();
  Require(found.requests.size() + found.damaged.size() == 1);
}

}  // namespace telltale::fuzz
