// SPDX-License-Identifier: Apache-2.0
// Sends a text message: by AWS SNS (Publish, signed with Signature Version 4), or by a gateway that
// takes JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "rules/actions/act.h"
#include "rules/actions/kinds.h"
#include "rules/actions/secret.h"

namespace telltale::rules {
namespace {

/// As application/x-www-form-urlencoded takes it.
std::string FormEncoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

std::string Variable(const ActionSpec& spec, std::string_view parameter) {
  const std::string name = ActionText(spec, parameter);
  return name.empty() ? std::string() : TextOrVariable(spec, "", {name.c_str()});
}

Result<Transfer> ToGateway(const ActionSpec& spec, const Notice& notice) {
  Transfer transfer;
  transfer.url = ActionText(spec, "gateway");
  TELLTALE_ASSIGN_OR_RETURN(const std::string token, Secret(spec, "token"));
  transfer.headers = {"Content-Type: application/json", "Idempotency-Key: " + notice.key};
  if (!token.empty()) transfer.headers.push_back("Authorization: Bearer " + token);
  const nlohmann::ordered_json body = {{"to", ActionText(spec, "to")}, {"text", ShortText(notice)}};
  transfer.body = body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return transfer;
}

Result<Transfer> ToSns(const ActionSpec& spec, const Notice& notice) {
  Transfer transfer;
  const std::string region = TextOrVariable(spec, "region", {"AWS_REGION", "AWS_DEFAULT_REGION"});
  const bool plain = !region.empty() && std::all_of(region.begin(), region.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!plain) {
    return Status(Code::kUsage, fmt::format("region '{}' is none: write region, or set AWS_REGION",
                                            Printable(region)));
  }
  transfer.user = Variable(spec, "key_id_env");
  transfer.password = Variable(spec, "key_env");
  if (transfer.user.empty() || transfer.password.empty()) {
    return Status(Code::kUsage,
                  fmt::format("no key of AWS: set {} and {} where the run is started",
                              ActionText(spec, "key_id_env"), ActionText(spec, "key_env")));
  }
  transfer.url = ActionText(spec, "endpoint");
  if (transfer.url.empty()) {
    transfer.url = fmt::format("https://sns.{}.amazonaws.com{}/", region,
                               region.starts_with("cn-") ? ".cn" : "");
  }
  const std::string topic = ActionText(spec, "topic_arn");
  transfer.body = fmt::format("Action=Publish&Version=2010-03-31&{}={}&Message={}",
                              topic.empty() ? "PhoneNumber" : "TopicArn",
                              FormEncoded(topic.empty() ? ActionText(spec, "to") : topic),
                              FormEncoded(ShortText(notice)));
  transfer.headers = {"Content-Type: application/x-www-form-urlencoded"};
  if (const std::string session = Variable(spec, "session_env"); !session.empty()) {
    transfer.headers.push_back("X-Amz-Security-Token: " + session);
  }
  transfer.sigv4 = fmt::format("aws:amz:{}:sns", region);
  return transfer;
}

}  // namespace

Result<std::string> ActSms(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  const bool gateway = !ActionText(spec, "gateway").empty();
  TELLTALE_ASSIGN_OR_RETURN(Transfer transfer,
                            gateway ? ToGateway(spec, notice) : ToSns(spec, notice));
  transfer.allow_private = ActionBool(spec, "allow_private");
  transfer.ca_file = ActionText(spec, "ca_file");
  transfer.timeout_seconds = ActionNumber(spec, "timeout");
  TELLTALE_RETURN_IF_ERROR(
      SendAndRetry(transfer, static_cast<int>(ActionNumber(spec, "retries")), *at.stop, at.pause));
  return std::string(gateway ? "the gateway took it" : "SNS took it");
}

}  // namespace telltale::rules
