// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/kinds.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace telltale::rules {
namespace {

Status Check(const std::string& kind, const std::map<std::string, std::string>& parameters) {
  ActionSpec spec;
  spec.kind = kind;
  spec.parameters = parameters;
  return CheckAction(spec);
}

TEST(ActionKinds, TakeWhatTheyDeclare) {
  EXPECT_TRUE(Check("stop", {}).ok());
  EXPECT_TRUE(Check("stop", {{"grace", "5"}, {"kill", "true"}}).ok());
  EXPECT_TRUE(Check("webhook", {{"url_env", "HOOK"}, {"format", "slack"}}).ok());
  EXPECT_TRUE(Check("email", {{"to", "a@example.org,b@example.org"}}).ok());
  EXPECT_TRUE(Check("sms", {{"to", "+15551234567"}}).ok());
  EXPECT_TRUE(Check("program", {{"program", "/bin/true"}}).ok());
}

TEST(ActionKinds, SayWhatIsWrong) {
  EXPECT_EQ(Check("stop", {{"grase", "5"}}).code(), Code::kUsage);
  EXPECT_NE(Check("stop", {{"grase", "5"}}).message().find("grace"), std::string::npos);
  EXPECT_EQ(Check("stop", {{"grace", "-1"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("stop", {{"grace", "nan"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("stop", {{"kill", "maybe"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("webhook", {}).code(), Code::kUsage);
  EXPECT_EQ(Check("webhook", {{"url", "https://a"}, {"url_env", "A"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("webhook", {{"url", "https://a\r\nX: y"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("webhook", {{"url", "ftp://a"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("webhook", {{"url", "https://me:secret@a/b"}}).code(), Code::kUsage);
  EXPECT_TRUE(Check("webhook", {{"url", "https://a/b@c"}}).ok());
  EXPECT_EQ(Check("email", {{"to", ","}}).code(), Code::kUsage);
  EXPECT_EQ(Check("email", {{"to", "a@example.org,nobody"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("email", {{"to", "a@b"}, {"sender", "<a@b>"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("sms", {{"to", "555"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("program", {{"program", "true"}}).code(), Code::kUsage);
  EXPECT_EQ(Check("capture", {{"steps", "0"}}).code(), Code::kUsage);
}

TEST(ActionKinds, Times) {
  EXPECT_EQ(ParseTime("1970-01-01T00:01:00Z"), 60'000'000'000);
  EXPECT_EQ(ParseTime("60"), 60'000'000'000);
  EXPECT_FALSE(ParseTime("tomorrow").has_value());
  EXPECT_FALSE(ParseTime("2026-13-01T00:00:00Z").has_value());
}

TEST(ActionKinds, HowOftenItActsMakesNoOtherAction) {
  ActionSpec one;
  one.kind = "stop";
  ActionSpec other = one;
  other.parameters["cooldown"] = "5";
  EXPECT_EQ(ActionId(one), ActionId(other));
  other.dry_run = false;
  EXPECT_NE(ActionId(one), ActionId(other));
}

}  // namespace
}  // namespace telltale::rules
