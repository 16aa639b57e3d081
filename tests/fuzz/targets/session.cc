// SPDX-License-Identifier: Apache-2.0
// The body by which a browser signs in: who says the code gets in once, who says the token is known
// by it, and nobody else gets in. Both are made anew for each input, which writes CODE and TOKEN
// where they stand.
#include <string>
#include <string_view>

#include "fuzz.h"
#include "server/auth.h"
#include "server/request.h"

namespace telltale::fuzz {
namespace {

std::string Replaced(std::string_view text, std::string_view word, std::string_view by) {
  std::string out;
  for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word)) {
    out.append(text.substr(0, at)).append(by);
    text.remove_prefix(at + word.size());
  }
  return out.append(text);
}

}  // namespace

TELLTALE_FUZZ_TARGET(session) {
  using server::Auth;
  auto auth = Auth::Fresh();
  Require(auth.ok());
  const auto issued = auth->NewCode();
  Require(issued.ok());
  const std::string body = Replaced(Replaced(bytes, "CODE", *issued), "TOKEN", auth->token());
  const std::string said = server::SessionCode(body);
  const bool right = said == *issued;
  // That it can be right at all, and that it is not where it was never said.
  if (bytes == R"({"code": "CODE"})") Require(right);
  if (bytes.find("CODE") == std::string_view::npos) Require(!right);
  Require(auth->TokenOk(said) == (said == auth->token()));
  Require(auth->TakeCode(said) == (right ? Auth::CodeIs::kGood : Auth::CodeIs::kUnknown));
  Require(auth->CodeOpen() == !right);
  Require(auth->TakeCode(said) == Auth::CodeIs::kUnknown);
}

}  // namespace telltale::fuzz
