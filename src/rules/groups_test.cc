// SPDX-License-Identifier: Apache-2.0
#include "rules/groups.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace telltale::rules {
namespace {

Finding Of(std::string rule, Severity severity, double cost, Standing standing = {}) {
  Finding f;
  f.rule = std::move(rule);
  f.standing = standing;
  f.incident.severity = severity;
  f.incident.cost_seconds = cost;
  f.incident.start_ns = 0;
  f.incident.end_ns = 100;
  return f;
}

std::vector<std::string> Names(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& f : findings) out.push_back(f.rule);
  return out;
}

TEST(RankedTest, HowTheRunEndedComesFirst) {
  EXPECT_EQ(Names(Ranked({Of("Slow", Severity::kHigh, 9),
                          Of("RunEnd", Severity::kMedium, 0, {.theme = Theme::kEnd})})),
            (std::vector<std::string>{"RunEnd", "Slow"}));
}

TEST(RankedTest, SevereBeforeMild) {
  EXPECT_EQ(Names(Ranked({Of("Low", Severity::kLow, 90), Of("High", Severity::kHigh, 1),
                          Of("Medium", Severity::kMedium, 50)})),
            (std::vector<std::string>{"High", "Medium", "Low"}));
}

TEST(RankedTest, WrongResultsBeforeSlowOnesAndWhatLastsBeforeWhatIsOver) {
  Finding wrong = Of("Wrong", Severity::kHigh, 2);
  wrong.wrong_result = true;
  Finding over = Of("Over", Severity::kHigh, 9);
  over.open = false;
  EXPECT_EQ(
      Names(Ranked({over, Of("Cheap", Severity::kHigh, 1), Of("Dear", Severity::kHigh, 5), wrong})),
      (std::vector<std::string>{"Wrong", "Dear", "Cheap", "Over"}));
}

TEST(GroupsTest, InAGroupTheFindingThatExplainsTheOthersStandsFirst) {
  const std::vector<Finding> findings = {
      Of("Alone", Severity::kMedium, 3),
      Of("InputBound", Severity::kHigh, 5, {.theme = Theme::kInput, .order = 4}),
      Of("SmallReads", Severity::kMedium, 4, {.theme = Theme::kInput, .order = 0}),
  };
  const auto groups = Groups(findings);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0], (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(groups[1], (std::vector<std::size_t>{0}));
}

TEST(GroupsTest, OfWhatMayBeEachOthersCauseTheOneThatExplainsMoreStandsFirst) {
  const auto of = [](std::string rule, int order, double explains) {
    Finding f =
        Of(std::move(rule), Severity::kHigh, explains, {.theme = Theme::kInput, .order = order});
    f.incident.evidence = "{\"explains_seconds\":" + std::to_string(explains) + "}";
    return f;
  };
  const Finding reads = Of("SmallReads", Severity::kLow, 1, {.theme = Theme::kInput, .order = 0});
  const Finding idle = Of("Underused", Severity::kLow, 1, {.theme = Theme::kInput, .order = 9});
  // Cores are what is short.
  EXPECT_EQ(Names(Ranked({of("InputBound", 4, 3), idle, of("CPUBottleneck", 5, 8), reads})),
            (std::vector<std::string>{"SmallReads", "CPUBottleneck", "InputBound", "Underused"}));
  // Fetches wait for something else.
  EXPECT_EQ(Names(Ranked({of("CPUBottleneck", 5, 1), of("InputBound", 4, 9)})),
            (std::vector<std::string>{"InputBound", "CPUBottleneck"}));
  // Each rank waits, and one of them lacks a core.
  EXPECT_EQ(
      Names(Ranked({of("CPUBottleneck", 5, 5), of("InputBound", 4, 4), of("InputBound", 4, 4)})),
      (std::vector<std::string>{"InputBound", "InputBound", "CPUBottleneck"}));
}

TEST(GroupsTest, TheOrderOfAListIsThatOfItsGroupsAndStaysAsItIs) {
  Finding later = Of("InputBound", Severity::kMedium, 1, {.theme = Theme::kInput, .order = 4});
  later.incident.start_ns = 200;
  later.incident.end_ns = 300;
  const std::vector<Finding> ranked =
      Ranked({later, Of("CPUBottleneck", Severity::kHigh, 2, {.theme = Theme::kInput, .order = 5}),
              Of("InputBound", Severity::kLow, 1, {.theme = Theme::kInput, .order = 4})});
  EXPECT_EQ(Names(ranked), (std::vector<std::string>{"InputBound", "CPUBottleneck", "InputBound"}));
  EXPECT_EQ(Names(Ranked(ranked)), Names(ranked));
  const auto groups = Groups(ranked);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0], (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace telltale::rules
