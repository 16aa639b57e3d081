// SPDX-License-Identifier: Apache-2.0
// Posts a notice to a URL.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {

Result<std::string> ActWebhook(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  std::string url = ActionText(spec, "url");
  if (url.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(url, Secret(spec, "url"));
  }
  if (url.empty()) {
    return Status(Code::kUsage,
                  "no URL: is the variable of url_env set where the run was started?");
  }
  TELLTALE_ASSIGN_OR_RETURN(HttpRequest request,
                            JsonPost(spec, notice.key, std::move(url), *at.stop));
  request.body = ActionText(spec, "format") == "slack" ? SlackJson(notice) : NoticeJson(notice);
  TELLTALE_RETURN_IF_ERROR(TryAgain(static_cast<int>(ActionNumber(spec, "retries")), *at.stop,
                                    at.pause, [&] { return Post(request); }));
  return fmt::format("posted {} {}", notice.findings.size(),
                     notice.findings.size() == 1 ? "finding" : "findings");
}

}  // namespace telltale::rules
