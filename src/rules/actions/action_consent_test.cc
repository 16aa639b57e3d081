// SPDX-License-Identifier: Apache-2.0
// Whose actions act: those that this user has asked for, and nothing that a run says.
#include "rules/actions/action_consent.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "rules/rule_set.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

ActionSpec Posting() {
  ActionSpec spec;
  spec.kind = "webhook";
  spec.parameters = {{"url", "https://example.org/hook"}, {"token_file", "/home/me/token"}};
  spec.dry_run = false;
  return spec;
}

RuleSet SetOf(const ActionSpec& spec) {
  RuleSet set;
  set.actions.push_back(spec);
  return set;
}

class ActionConsentTest : public ::testing::Test {
 protected:
  void SetUp() override { ::unsetenv("TELLTALE_ACTIONS"); }
  void TearDown() override { ::unsetenv("TELLTALE_ACTIONS"); }

  store::TempFolder folder_;
  const fs::path file_ = folder_.path() / "telltale/actions";
};

TEST_F(ActionConsentTest, WhatWasAskedForActsAndNothingElseDoes) {
  EXPECT_FALSE(ActionConsent(file_).Has(Posting()));
  ASSERT_TRUE(ActionConsent(file_).Remember(SetOf(Posting())).ok());
  const ActionConsent later(file_);
  EXPECT_TRUE(later.Has(Posting()));

  ActionSpec other = Posting();
  other.parameters["url"] = "https://example.com/hook";
  EXPECT_FALSE(later.Has(other)) << "another target";
  other = Posting();
  other.parameters["token_file"] = "/home/me/.ssh/id_rsa";
  EXPECT_FALSE(later.Has(other)) << "another credential";
  other = Posting();
  other.parameters["allow_private"] = "true";
  EXPECT_FALSE(later.Has(other)) << "a parameter more";
  other = Posting();
  other.parameters.erase("token_file");
  EXPECT_FALSE(later.Has(other)) << "a parameter less";
  other = Posting();
  other.from = Severity::kInfo;
  EXPECT_FALSE(later.Has(other)) << "set off by less";
  other = Posting();
  other.kind = "email";
  EXPECT_FALSE(later.Has(other)) << "another kind";
}

TEST_F(ActionConsentTest, AnActionThatOnlySaysIsNotAgreedTo) {
  ActionSpec dry = Posting();
  dry.dry_run = true;
  ASSERT_TRUE(ActionConsent(file_).Remember(SetOf(dry)).ok());
  EXPECT_FALSE(ActionConsent(file_).Has(Posting()));
}

TEST_F(ActionConsentTest, ActionsOfOneRuleAreAgreedToLikeThoseOfAll) {
  RuleSet set;
  RuleSpec rule;
  rule.name = rule.rule = "Divergence";
  rule.actions.push_back(Posting());
  set.rules.push_back(rule);
  ASSERT_TRUE(ActionConsent(file_).Remember(set).ok());
  EXPECT_TRUE(ActionConsent(file_).Has(Posting()));
}

TEST_F(ActionConsentTest, AFileWithoutItsFolderIsAnotherOneElsewhere) {
  ActionSpec relative = Posting();
  relative.parameters["token_file"] = "token";
  const fs::path before = fs::current_path();
  ASSERT_TRUE(ActionConsent(file_).Remember(SetOf(relative)).ok());
  EXPECT_TRUE(ActionConsent(file_).Has(relative));
  fs::current_path(folder_.path());
  EXPECT_FALSE(ActionConsent(file_).Has(relative));
  fs::current_path(before);
}

TEST_F(ActionConsentTest, TheEnvironmentMaySayAllOrNone) {
  ActionConsent consent(file_);
  ::setenv("TELLTALE_ACTIONS", "on", 1);
  EXPECT_TRUE(consent.Has(Posting()));
  ASSERT_TRUE(consent.Remember(SetOf(Posting())).ok());
  ::setenv("TELLTALE_ACTIONS", "off", 1);
  EXPECT_FALSE(consent.Has(Posting()));
  EXPECT_EQ(consent.WhyNot(Posting()), kSwitchedOff) << "it was agreed to";
  ::unsetenv("TELLTALE_ACTIONS");
  EXPECT_EQ(consent.WhyNot(Posting()), "");
  EXPECT_EQ(ActionConsent(folder_.path() / "none").WhyNot(Posting()), kNotAgreed);
}

TEST_F(ActionConsentTest, WhereAllAreSwitchedOffTheLineSaysThatAndNotThatItWasNotAgreedTo) {
  ActionConsent consent(file_);
  ASSERT_TRUE(consent.Remember(SetOf(Posting())).ok());
  RuleSpec rule;
  rule.name = "One";
  rule.actions = {Posting()};
  EXPECT_TRUE(NotAgreedLines({rule}, consent).empty());
  ::setenv("TELLTALE_ACTIONS", "off", 1);
  const std::vector<std::string> lines = NotAgreedLines({rule}, consent);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("webhook"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("TELLTALE_ACTIONS=off"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find("agreed"), std::string::npos) << lines[0];
}

TEST_F(ActionConsentTest, WhatIsPassedOnHasABoundAndIsSaidToBeBeyondIt) {
  EXPECT_TRUE(ActionConsent::PassOn({}));
  EXPECT_FALSE(ActionConsent::Asks({}));
  EXPECT_TRUE(ActionConsent::Asks(SetOf(Posting())));
  EXPECT_TRUE(ActionConsent::PassOn(SetOf(Posting())));
  RuleSet many;
  for (int i = 0; i < 1000; ++i) {
    ActionSpec spec = Posting();
    spec.parameters["url"] = "https://example.org/hook/" + std::to_string(i);
    many.actions.push_back(spec);
  }
  EXPECT_FALSE(ActionConsent::PassOn(many));
  ::unsetenv("TELLTALE_ACTIONS_AGREED");
}

TEST_F(ActionConsentTest, ALineSaysWhatIsNotDoneToWhomWithWhatAndHowToAgree) {
  ActionConsent consent(file_);
  ActionSpec dry = Posting();
  dry.dry_run = true;
  ActionSpec mail;
  mail.kind = "email";
  mail.parameters = {{"to", "mallory@example.org\nx"}};
  mail.dry_run = false;
  RuleSpec one;
  one.name = "One";
  one.actions = {Posting(), dry, mail};
  RuleSpec two;
  two.name = "Two";
  two.actions = {Posting()};
  const std::vector<std::string> lines = NotAgreedLines({one, two}, consent);
  ASSERT_EQ(lines.size(), 2U);
  for (const char* words : {"email", "mallory@example.org", "password_env = TELLTALE_SMTP_PASSWORD",
                            "rule One", "--actions"}) {
    EXPECT_NE(lines[0].find(words), std::string::npos) << lines[0];
  }
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  for (const char* words : {"webhook", "url = https://example.org/hook",
                            "token_file = /home/me/token", "2 rules", "TELLTALE_ACTIONS=on"}) {
    EXPECT_NE(lines[1].find(words), std::string::npos) << lines[1];
  }
  ASSERT_TRUE(consent.Remember(SetOf(Posting())).ok());
  EXPECT_EQ(NotAgreedLines({one, two}, consent).size(), 1U);
}

}  // namespace
}  // namespace telltale::rules
