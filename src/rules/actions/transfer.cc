// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/printable.h"
#include "rules/actions/address_guard.h"
#include "rules/actions/secret.h"

namespace telltale::rules {
namespace {

constexpr double kMaxPauseSeconds = 60;
/// None of it is shown: what an address of somebody's choice says is nobody's.
constexpr std::size_t kMaxAnswerBytes = 4096;

/// What the client says of an address is of the host alone: the rest of a webhook's is a secret.
constexpr const char* kNotAllowed =
    ": of this machine or a private network; allow_private = true lets these, and none lets "
    "link-local ones";

}  // namespace

AddressAllowed Guard(bool allow_private) {
  return [allow_private](const sockaddr* address, socklen_t size) {
    const Reach reach = ReachOf(address, size);
    return reach == Reach::kPublic || (reach == Reach::kPrivate && allow_private);
  };
}

HttpRequest GuardedRequest(const ActionSpec& spec, const std::atomic<bool>& stop) {
  HttpRequest request;
  request.address_allowed = Guard(ActionBool(spec, "allow_private"));
  request.proxy = ActionText(spec, "proxy");
  request.ca_file = ActionText(spec, "ca_file");
  request.timeout_ms =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(ActionNumber(spec, "timeout") * 1000));
  request.connect_timeout_ms = request.timeout_ms;
  request.most_answer_bytes = kMaxAnswerBytes;
  request.stop = &stop;
  return request;
}

Result<HttpRequest> JsonPost(const ActionSpec& spec, std::string_view key, std::string url,
                             const std::atomic<bool>& stop) {
  HttpRequest request = GuardedRequest(spec, stop);
  request.url = std::move(url);
  TELLTALE_ASSIGN_OR_RETURN(const std::string token, Secret(spec, "token"));
  if (!token.empty() && request.url.starts_with("http://") && !ActionBool(spec, "allow_private")) {
    return Status(Code::kUsage,
                  "a token is not sent in the clear: write https://, or allow_private = true for a "
                  "receiver of your own network");
  }
  request.headers = {"Content-Type: application/json", fmt::format("Idempotency-Key: {}", key)};
  if (!token.empty()) request.headers.push_back("Authorization: Bearer " + token);
  return request;
}

Try Post(const HttpRequest& request) {
  bool refused = false;
  HttpRequest asked = request;
  asked.address_allowed = [&](const sockaddr* address, socklen_t size) {
    const bool allowed = !request.address_allowed || request.address_allowed(address, size);
    refused = refused || !allowed;
    return allowed;
  };
  const auto response = SendHttp(asked);
  if (!response.ok()) {
    const Status& status = response.status();
    const bool guard = refused && status.code() == Code::kUsage;
    return {Status(status.code(), status.message() + (guard ? kNotAllowed : "")),
            status.code() == Code::kIo, 0};
  }
  const int code = response->status;
  if (code >= 200 && code < 300) return {};
  Try out;
  out.status = {Code::kIo,
                code >= 300 && code < 400
                    ? fmt::format("HTTP {}: it sends elsewhere, which is not followed", code)
                    : fmt::format("HTTP {}", code)};
  out.retry = code == 408 || code == 425 || code == 429 || code >= 500;
  out.retry_after_seconds = static_cast<double>(response->retry_after_s.value_or(0));
  return out;
}

Try Mail(const MailRequest& request) {
  MailOutcome outcome = SendMail(request);
  return {std::move(outcome.status), outcome.retry, 0};
}

Status TryAgain(int retries, const std::atomic<bool>& stop, const Pause& pause,
                const std::function<Try()>& attempt) {
  double wait = 1;
  for (int tried = 1;; ++tried, wait *= 2) {
    const Try now = attempt();
    if (now.status.ok()) return {};
    const double seconds = std::min(kMaxPauseSeconds, std::max(wait, now.retry_after_seconds));
    if (!now.retry || tried > retries || stop.load() || !pause(seconds)) {
      return {now.status.code(), fmt::format("{}{}", Printable(now.status.message()),
                                             tried > 1 ? fmt::format(" ({} tries)", tried) : "")};
    }
  }
}

}  // namespace telltale::rules
