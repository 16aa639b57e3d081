// SPDX-License-Identifier: Apache-2.0
// What needs no server; tests/e2e/test_actions.py has real ones.
#include "base/mail_client.h"

#include <gtest/gtest.h>

namespace telltale {
namespace {

MailRequest Plain() {
  MailRequest request;
  request.server = "smtp://127.0.0.1:1/here";
  request.from = "t@example.org";
  request.to = {"a@example.org"};
  request.text = "Subject: x\r\n\r\nx\r\n";
  return request;
}

TEST(MailClient, WhatMakesNoSenseIsNotTried) {
  MailRequest request = Plain();
  request.server = "http://127.0.0.1:1/";
  EXPECT_EQ(SendMail(request).status.code(), Code::kUsage);
  request = Plain();
  request.to.clear();
  EXPECT_EQ(SendMail(request).status.code(), Code::kUsage);
  for (const char* to : {"", "a@example.org\r\nRCPT TO:<b@example.org>", "a> <b"}) {
    request.to = {to};
    EXPECT_EQ(SendMail(request).status.code(), Code::kUsage) << to;
  }
}

TEST(MailClient, APasswordIsNotSentInTheClear) {
  MailRequest request = Plain();
  request.starttls = false;
  request.user = "me";
  request.password = "secret";
  const MailOutcome outcome = SendMail(request);
  EXPECT_EQ(outcome.status.code(), Code::kUsage);
  EXPECT_FALSE(outcome.retry);
}

TEST(MailClient, AServerThatIsNotThereMayCome) {
  const MailOutcome outcome = SendMail(Plain());
  EXPECT_EQ(outcome.status.code(), Code::kIo);
  EXPECT_TRUE(outcome.retry);
}

TEST(MailClient, AnAddressThatIsNotAllowedIsNotConnectedTo) {
  MailRequest request = Plain();
  request.address_allowed = [](const sockaddr*, socklen_t) { return false; };
  const MailOutcome outcome = SendMail(request);
  EXPECT_EQ(outcome.status.code(), Code::kUsage);
  EXPECT_FALSE(outcome.retry);
}

}  // namespace
}  // namespace telltale
