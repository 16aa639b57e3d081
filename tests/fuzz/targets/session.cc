// SPDX-License-Identifier: Apache-2.0
// The body by which a browser signs in: whatever it says, nobody gets in without a code or the
// token.
#include <string>
#include <string_view>

#include "fuzz.h"
#include "server/auth.h"
#include "server/request.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(session) {
  using server::Auth;
  auto auth = Auth::Fresh();
  Require(auth.ok());
  const auto issued = auth->NewCode();
  Require(issued.ok());
  const std::string code = server::SessionCode(bytes);
  Require(!auth->TokenOk(code) && auth->TakeCode(code) == Auth::CodeIs::kUnknown);
  Require(auth->CodeOpen());
}

}  // namespace telltale::fuzz
