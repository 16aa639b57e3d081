// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/decision.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"

namespace telltale::rules {
namespace {

ActionSpec Action(const std::string& kind, std::map<std::string, std::string> parameters = {}) {
  ActionSpec spec;
  spec.kind = kind;
  spec.parameters = std::move(parameters);
  spec.dry_run = false;
  return spec;
}

RuleSpec RuleWith(std::vector<ActionSpec> actions) {
  RuleSpec rule;
  rule.name = rule.rule = "LossNotDecreasing";
  rule.actions = std::move(actions);
  return rule;
}

Finding Reported(const std::string& id, Severity severity = Severity::kHigh,
                 std::uint32_t revision = 1) {
  Finding finding;
  finding.id = id;
  finding.rule = "LossNotDecreasing";
  finding.revision = revision;
  finding.incident.severity = severity;
  finding.incident.subject = "rank 0";
  return finding;
}

TEST(Decision, AnIncidentSetsOffAnActionOnce) {
  Decider decider({RuleWith({Action("stop")})});
  EXPECT_EQ(decider.Decide({Reported("a")}, {.run_ns = kSecond}).size(), 1U);
  EXPECT_TRUE(decider.Decide({Reported("a", Severity::kHigh, 2)}, {.run_ns = 9 * kSecond}).empty());
}

TEST(Decision, WhatIsRecalledIsNotDecidedAgain) {
  Decider first({RuleWith({Action("stop")})});
  const auto decided = first.Decide({Reported("a")}, {.run_ns = kSecond});
  ASSERT_EQ(decided.size(), 1U);
  Decider second({RuleWith({Action("stop")})});
  second.Recall(decided[0].key, "LossNotDecreasing", decided[0].action_id, "", kSecond);
  EXPECT_TRUE(second.Decide({Reported("a")}, {.run_ns = 2 * kSecond}).empty());
}

TEST(Decision, WaitsUntilItIsSevereEnough) {
  Decider decider({RuleWith({Action("webhook")})});
  EXPECT_TRUE(decider.Decide({Reported("a", Severity::kLow)}, {}).empty());
  EXPECT_EQ(decider.Decide({Reported("a", Severity::kMedium, 2)}, {}).size(), 1U);
}

TEST(Decision, WhatIsOverStopsNothingButIsToldOf) {
  Decider decider({RuleWith({Action("stop"), Action("webhook")})});
  Finding closed = Reported("a", Severity::kHigh, 2);
  closed.open = false;
  const auto decided = decider.Decide({Reported("a"), closed}, {});
  ASSERT_EQ(decided.size(), 1U);
  EXPECT_EQ(decided[0].spec.kind, "webhook");
}

TEST(Decision, ATrainingThatHasEndedIsNotStopped) {
  Decider decider({RuleWith({Action("stop")})});
  const auto decided = decider.Decide({Reported("a")}, {.over = true});
  ASSERT_EQ(decided.size(), 1U);
  EXPECT_EQ(decided[0].held, "the training has ended");
}

TEST(Decision, ADryRunIsTheDefaultOfANewAction) {
  EXPECT_TRUE(ActionSpec().dry_run);
  ActionSpec spec = Action("stop");
  spec.dry_run = true;
  Decider decider({RuleWith({spec})});
  EXPECT_EQ(decider.Decide({Reported("a")}, {})[0].held, kDryRun);
}

TEST(Decision, InTheCoolDownOthersOnlyCount) {
  Decider decider({RuleWith({Action("webhook", {{"cooldown", "60"}})})});
  const auto first = decider.Decide({Reported("a")}, {.run_ns = kSecond});
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(decider.Decide({Reported("b")}, {.run_ns = 30 * kSecond})[0].held, kCoolDown);
  EXPECT_EQ(decider.Decide({Reported("c")}, {.run_ns = 61 * kSecond})[0].held, "");
  EXPECT_EQ(decider.TakeHeld("LossNotDecreasing", first[0].action_id), 1U);
  EXPECT_EQ(decider.TakeHeld("LossNotDecreasing", first[0].action_id), 0U);
}

TEST(Decision, WhatComesWhileTheFirstWaitsIsToldWithIt) {
  Decider decider({RuleWith({Action("email", {{"group_wait", "60"}, {"cooldown", "300"}})})});
  EXPECT_EQ(decider.Decide({Reported("a")}, {.run_ns = kSecond})[0].held, "");
  EXPECT_EQ(decider.Decide({Reported("b")}, {.run_ns = 31 * kSecond})[0].held, "");
  EXPECT_EQ(decider.Decide({Reported("c")}, {.run_ns = 62 * kSecond})[0].held, kCoolDown);
  EXPECT_EQ(decider.Decide({Reported("d")}, {.run_ns = 361 * kSecond})[0].held, "");
}

TEST(Decision, WhatComesAtOneMomentIsOneMessageButNotManyPrograms) {
  Decider decider({RuleWith({Action("webhook"), Action("program")})});
  const auto decided = decider.Decide({Reported("a"), Reported("b")}, {.run_ns = kSecond});
  ASSERT_EQ(decided.size(), 4U);
  for (const Decision& decision : decided) {
    const bool second_program = decision.spec.kind == "program" && decision.finding.id == "b";
    EXPECT_EQ(decision.held, second_program ? kCoolDown : "") << decision.key;
  }
}

TEST(Decision, SilenceIsByNameAndByTime) {
  Decider named({RuleWith({Action("webhook", {{"silence", "Other,Loss*/rank ?"}})})});
  EXPECT_EQ(named.Decide({Reported("a")}, {})[0].held, "silenced");
  Decider timed({RuleWith({Action("webhook", {{"silence_until", "1000"}})})});
  EXPECT_EQ(timed.Decide({Reported("a")}, {.unix_ns = 999 * kSecond})[0].held, "silenced");
  EXPECT_EQ(timed.Decide({Reported("b")}, {.unix_ns = 1000 * kSecond})[0].held, "");
}

TEST(Decision, Patterns) {
  EXPECT_TRUE(Matches("*", ""));
  EXPECT_TRUE(Matches("a*c", "abbc"));
  EXPECT_TRUE(Matches("a?c", "abc"));
  EXPECT_FALSE(Matches("a?c", "ac"));
  EXPECT_FALSE(Matches("a*c", "abcd"));
}

}  // namespace
}  // namespace telltale::rules
