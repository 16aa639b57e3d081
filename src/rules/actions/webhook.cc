// SPDX-License-Identifier: Apache-2.0
// Posts a notice to a URL. The key goes along as Idempotency-Key, the same in every try, so that a
// receiver can tell a repeated post from a second incident.
#include <fmt/format.h>

#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {

Result<std::string> ActWebhook(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  HttpRequest request = GuardedRequest(spec, *at.stop);
  request.url = ActionText(spec, "url");
  if (request.url.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(request.url, Secret(spec, "url"));
  }
  if (request.url.empty()) {
    return Status(Code::kUsage,
                  "no URL: is the variable of url_env set where the run was started?");
  }
  TELLTALE_ASSIGN_OR_RETURN(const std::string token, Secret(spec, "token"));
  if (!token.empty() && request.url.starts_with("http://") && !ActionBool(spec, "allow_private")) {
    return Status(Code::kUsage,
                  "a token is not sent in the clear: write https://, or allow_private = true for a "
                  "receiver of your own network");
  }
  request.headers = {"Content-Type: application/json", "Idempotency-Key: " + notice.key};
  if (!token.empty()) request.headers.push_back("Authorization: Bearer " + token);
  request.body = ActionText(spec, "format") == "slack" ? SlackJson(notice) : NoticeJson(notice);
  TELLTALE_RETURN_IF_ERROR(TryAgain(static_cast<int>(ActionNumber(spec, "retries")), *at.stop,
                                    at.pause, [&] { return Post(request); }));
  return fmt::format("posted {} {}", notice.findings.size(),
                     notice.findings.size() == 1 ? "finding" : "findings");
}

}  // namespace telltale::rules
