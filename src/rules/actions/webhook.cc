// SPDX-License-Identifier: Apache-2.0
// Posts a notice to a URL. The key goes along as Idempotency-Key, the same in every try, so that a
// receiver can tell a repeated post from a second incident.
#include <fmt/format.h>

#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {

Result<std::string> ActWebhook(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  Transfer transfer;
  transfer.url = ActionText(spec, "url");
  if (transfer.url.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(transfer.url, Secret(spec, "url"));
  }
  if (transfer.url.empty()) {
    return Status(Code::kUsage,
                  "no URL: is the variable of url_env set where the run was started?");
  }
  TELLTALE_ASSIGN_OR_RETURN(const std::string token, Secret(spec, "token"));
  transfer.headers = {"Content-Type: application/json", "Idempotency-Key: " + notice.key};
  if (!token.empty()) transfer.headers.push_back("Authorization: Bearer " + token);
  transfer.body = ActionText(spec, "format") == "slack" ? SlackJson(notice) : NoticeJson(notice);
  transfer.allow_private = ActionBool(spec, "allow_private");
  transfer.proxy = ActionText(spec, "proxy");
  transfer.ca_file = ActionText(spec, "ca_file");
  transfer.timeout_seconds = ActionNumber(spec, "timeout");
  TELLTALE_RETURN_IF_ERROR(
      SendAndRetry(transfer, static_cast<int>(ActionNumber(spec, "retries")), *at.stop, at.pause));
  return fmt::format("posted {} {}", notice.findings.size(),
                     notice.findings.size() == 1 ? "finding" : "findings");
}

}  // namespace telltale::rules
