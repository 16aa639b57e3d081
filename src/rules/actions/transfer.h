// SPDX-License-Identifier: Apache-2.0
// The HTTP requests and mails of actions, with their guards: no redirect is followed, no address is
// connected that address_guard.h refuses, what may help is tried again. Thread safety: several
// threads may send at once.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/http_client.h"
#include "base/mail_client.h"
#include "base/status.h"
#include "rules/actions/kinds.h"
#include "rules/rule_set.h"

namespace telltale::rules {

/// One try.
struct Try {
  Status status;
  bool retry = false;              ///< Another may help.
  double retry_after_seconds = 0;  ///< What the server asked for.
};

/// Link-local addresses are refused in any case.
AddressAllowed Guard(bool allow_private);

/// A request with the spec's allow_private, proxy, ca_file and timeout.
HttpRequest GuardedRequest(const ActionSpec& spec, const std::atomic<bool>& stop);
/// The same that posts JSON to `url`: the body is the caller's. The key goes along as
/// Idempotency-Key, the same in every try, so that a receiver can tell a repeated post from a
/// second incident; the secret "token" as a bearer token. kUsage: a token would be sent in the
/// clear.
Result<HttpRequest> JsonPost(const ActionSpec& spec, std::string_view key, std::string url,
                             const std::atomic<bool>& stop);
/// Sends it: ok where the answer is 2xx.
Try Post(const HttpRequest& request);
Try Mail(const MailRequest& request);

/// Tries, and again after 1, 2, 4, ... s (or what the server asked for, 60 s at most) where it may
/// help. `pause` waits and gives false where there is no time for that. The last try's status.
using Pause = std::function<bool(double seconds)>;
Status TryAgain(int retries, const std::atomic<bool>& stop, const Pause& pause,
                const std::function<Try()>& attempt);

}  // namespace telltale::rules
