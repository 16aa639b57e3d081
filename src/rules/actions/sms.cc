// SPDX-License-Identifier: Apache-2.0
// Sends a text message: by AWS SNS (Publish, signed with Signature Version 4), or by a gateway that
// takes JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/aws_credentials.h"
#include "base/json.h"
#include "base/printable.h"
#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {
namespace {

std::string Variable(const ActionSpec& spec, std::string_view parameter) {
  const std::string name = ActionText(spec, parameter);
  return name.empty() ? std::string() : TextOrVariable(spec, "", {name.c_str()});
}

Result<HttpRequest> ToGateway(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  TELLTALE_ASSIGN_OR_RETURN(HttpRequest request,
                            JsonPost(spec, notice.key, ActionText(spec, "gateway"), *at.stop));
  const nlohmann::ordered_json body = {{"to", ActionText(spec, "to")}, {"text", ShortText(notice)}};
  request.body = JsonText(body);
  return request;
}

/// The keys that the variables hold; where nobody has named or set any, those that AWS's own tools
/// would find, a role's too.
Result<AwsSignature> Keys(const ActionSpec& spec) {
  AwsSignature keys;
  keys.access_key = Variable(spec, "key_id_env");
  keys.secret_key = Variable(spec, "key_env");
  if (!keys.access_key.empty() && !keys.secret_key.empty()) {
    keys.session_token = Variable(spec, "session_env");
    return keys;
  }
  if (spec.parameters.contains("key_id_env") || spec.parameters.contains("key_env")) {
    return Status(Code::kAuth,
                  fmt::format("no AWS key was found: set {} and {} where the run is started",
                              ActionText(spec, "key_id_env"), ActionText(spec, "key_env")));
  }
  TELLTALE_ASSIGN_OR_RETURN(const AwsCredentials found, FindAwsCredentials());
  keys.access_key = found.access_key;
  keys.secret_key = found.secret_key;
  keys.session_token = found.session_token;
  return keys;
}

Result<HttpRequest> ToSns(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  HttpRequest request = GuardedRequest(spec, *at.stop);
  const std::string region = TextOrVariable(spec, "region", {"AWS_REGION", "AWS_DEFAULT_REGION"});
  const bool plain = !region.empty() && std::all_of(region.begin(), region.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!plain) {
    return Status(Code::kUsage, fmt::format("'{}' is no name of an AWS region: write region in the "
                                            "action, or set AWS_REGION",
                                            Printable(region)));
  }
  TELLTALE_ASSIGN_OR_RETURN(AwsSignature keys, Keys(spec));
  keys.region = region;
  keys.service = "sns";
  request.aws = std::move(keys);
  request.url = ActionText(spec, "endpoint");
  if (request.url.empty()) {
    request.url = fmt::format("https://sns.{}.amazonaws.com{}/", region,
                              region.starts_with("cn-") ? ".cn" : "");
  }
  const std::string topic = ActionText(spec, "topic_arn");
  request.body = fmt::format("Action=Publish&Version=2010-03-31&{}={}&Message={}",
                             topic.empty() ? "PhoneNumber" : "TopicArn",
                             PercentEncoded(topic.empty() ? ActionText(spec, "to") : topic),
                             PercentEncoded(ShortText(notice)));
  request.headers = {"Content-Type: application/x-www-form-urlencoded"};
  return request;
}

}  // namespace

Result<std::string> ActSms(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  const bool gateway = !ActionText(spec, "gateway").empty();
  TELLTALE_ASSIGN_OR_RETURN(const HttpRequest request,
                            gateway ? ToGateway(spec, notice, at) : ToSns(spec, notice, at));
  TELLTALE_RETURN_IF_ERROR(TryAgain(static_cast<int>(ActionNumber(spec, "retries")), *at.stop,
                                    at.pause, [&] { return Post(request); }));
  return std::string(gateway ? "the gateway took it" : "SNS took it");
}

}  // namespace telltale::rules
