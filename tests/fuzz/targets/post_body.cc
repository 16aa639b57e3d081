// SPDX-License-Identifier: Apache-2.0
// Bodies that a browser posts: a request for a window of detail.
#include "cli/window_request.h"
#include "fuzz.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(post_body) {
  // There is no run: what is asked makes sense, or it is refused before it is looked for.
  const auto answer = cli::AskForWindow((ScratchRoot() / "no-run").string(), std::string(bytes));
  Require(!answer.ok());
}

}  // namespace telltale::fuzz
