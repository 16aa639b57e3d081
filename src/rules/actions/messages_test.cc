// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "rules/actions/act.h"
#include "rules/actions/notice.h"

namespace telltale::rules {
namespace {

Notice Hostile() {
  Notice notice;
  notice.key = "0123456789abcdef-0123456789abcdef";
  notice.run = "r1";
  notice.name = "train\r\nBcc: victim@example.org";
  Finding finding;
  finding.rule = "Divergence";
  finding.incident.message = "loss\r\nX-Evil: 1\r\n\r\n<!channel> & \x1b[31m";
  finding.incident.advice = "lower the rate";
  notice.findings.push_back(finding);
  return notice;
}

TEST(Messages, NothingThatARuleSaysMakesAHeader) {
  ActionSpec spec;
  spec.kind = "email";
  spec.parameters = {{"to", "a@example.org"}, {"sender", "t@example.org"}};
  const auto mail = MailText(spec, Hostile(), 1'700'000'000'000'000'000);
  ASSERT_TRUE(mail.ok()) << mail.status().message();
  const std::string head = mail->substr(0, mail->find("\r\n\r\n"));
  EXPECT_EQ(head.find("Bcc"), std::string::npos);
  EXPECT_EQ(head.find("X-Evil"), std::string::npos);
  EXPECT_NE(head.find("Subject: =?UTF-8?B?"), std::string::npos);
  EXPECT_NE(head.find("Date: Tue, 14 Nov 2023 22:13:20 +0000"), std::string::npos);
}

TEST(Messages, AnAddressIsOneAddress) {
  for (const char* to : {"a@example.org\r\nBcc: b@example.org", "a b@example.org",
                         "<a@example.org>", "a@b@example.org", "nobody", "@example.org"}) {
    ActionSpec spec;
    spec.kind = "email";
    spec.parameters = {{"to", to}, {"sender", "t@example.org"}};
    EXPECT_EQ(MailText(spec, Hostile(), 0).status().code(), Code::kUsage) << to;
  }
}

TEST(Messages, SlackGetsPlainText) {
  const auto body = ParseJson(SlackJson(Hostile()));
  const std::string text = body["text"].get<std::string>();
  EXPECT_EQ(text.find("<!channel>"), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(body["blocks"].size(), 2U);
}

TEST(Messages, TheGenericBodyHoldsTheFindings) {
  const auto body = ParseJson(NoticeJson(Hostile()));
  EXPECT_EQ(body["version"], 1);
  EXPECT_EQ(body["key"], "0123456789abcdef-0123456789abcdef");
  EXPECT_EQ(body["findings"][0]["rule"], "Divergence");
}

}  // namespace
}  // namespace telltale::rules
