// SPDX-License-Identifier: Apache-2.0
#include "rules/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

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

Finding Explained(std::string rule, Severity severity, const char* evidence, Theme theme) {
  Finding f = Of(std::move(rule), severity, 1, {.theme = theme, .order = 6});
  f.incident.subject = "rank 0";
  f.incident.evidence = evidence;
  f.incident.advice = "Its own.";
  return f;
}

TEST(GroupsTest, WhatFollowsStandsBehindItsCauseWhateverItsTheme) {
  const Finding ratio = Explained("WeightUpdateRatio", Severity::kHigh,
                                  R"({"explained_by":["LearningRateSchedule"]})", Theme::kLayers);
  Finding rate = Explained("LearningRateSchedule", Severity::kMedium, "{}", Theme::kLearning);
  rate.incident.subject = "rank 0, zero";
  const Finding other = Explained("Overfit", Severity::kHigh, "{}", Theme::kFit);
  const std::vector<Finding> ranked = Ranked({other, ratio, rate});
  EXPECT_EQ(Names(ranked),
            (std::vector<std::string>{"Overfit", "LearningRateSchedule", "WeightUpdateRatio"}));
  EXPECT_EQ(ranked[1].incident.severity, Severity::kHigh) << "a cause is as severe";
  EXPECT_EQ(ranked[1].incident.advice, "Its own.");
  EXPECT_EQ(ranked[2].incident.advice, "First do what LearningRateSchedule says.");
  EXPECT_EQ(Groups(ranked).size(), 2U);
  EXPECT_EQ(Names(Ranked(ranked)), Names(ranked));
}

TEST(GroupsTest, TheCauseMaySayWhatFollowsFromIt) {
  const Finding softmax =
      Explained("LossFunction", Severity::kHigh, R"({"explains":["PoorWeightInitialization"]})",
                Theme::kLearning);
  const Finding narrow =
      Explained("PoorWeightInitialization", Severity::kMedium, "{}", Theme::kLayers);
  const auto groups = Groups(std::vector<Finding>{narrow, softmax});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0], (std::vector<std::size_t>{1, 0}));
}

TEST(GroupsTest, NothingFollowsFromWhatIsUncertainElsewhereOverOrCameLater) {
  const Finding ratio = Explained("WeightUpdateRatio", Severity::kHigh,
                                  R"({"explained_by":["LearningRateSchedule"]})", Theme::kLayers);
  const auto stands_alone = [&](const Finding& cause) {
    const std::vector<Finding> ranked = Ranked({cause, ratio});
    return Groups(ranked).size() == 2 && ranked[0].incident.advice == "Its own." &&
           ranked[1].incident.advice == "Its own.";
  };
  const Finding rate = Explained("LearningRateSchedule", Severity::kMedium, "{}", Theme::kLearning);
  EXPECT_FALSE(stands_alone(rate));
  Finding low = rate;
  low.incident.severity = Severity::kLow;
  EXPECT_TRUE(stands_alone(low));
  Finding elsewhere = rate;
  elsewhere.incident.subject = "rank 1";
  EXPECT_TRUE(stands_alone(elsewhere));
  Finding over = rate;
  over.open = false;
  EXPECT_TRUE(stands_alone(over));
  Finding late = rate;
  late.incident.start_ns = 60;
  EXPECT_TRUE(stands_alone(late));
}

TEST(GroupsTest, TwoThatNameEachOtherStandAsTheyWould) {
  const Finding a = Explained("A", Severity::kHigh, R"({"explained_by":["B"]})", Theme::kLayers);
  const Finding b =
      Explained("B", Severity::kMedium, R"({"explained_by":["A"]})", Theme::kLearning);
  EXPECT_EQ(Names(Ranked({b, a})), (std::vector<std::string>{"A", "B"}));
}

TEST(RankedTest, OfVeryManyThoseThatRankHighestAreTaken) {
  std::vector<Finding> many;
  for (int i = 0; i < 20'000; ++i) {
    many.push_back(
        Of("Rule" + std::to_string(i), i % 100 == 0 ? Severity::kHigh : Severity::kLow, 1));
  }
  std::size_t left_out = 0;
  const std::vector<Finding> ranked = Ranked(many, &left_out);
  ASSERT_EQ(ranked.size(), kMostRanked);
  EXPECT_EQ(left_out, many.size() - kMostRanked);
  for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(ranked[i].incident.severity, Severity::kHigh);
  EXPECT_EQ(Ranked(ranked, &left_out).size(), kMostRanked);
  EXPECT_EQ(left_out, 0U);
}

TEST(RankedTest, ARuleWithVeryManyFindingsPushesNoOtherRuleOut) {
  std::vector<Finding> many;
  for (int i = 0; i < 2000; ++i) many.push_back(Of("Loud", Severity::kHigh, 100 + i));
  for (int i = 0; i < 5; ++i) many.push_back(Of("Quiet", Severity::kLow, 1));
  std::size_t left_out = 0;
  const std::vector<std::string> names = Names(Ranked(many, &left_out));
  EXPECT_EQ(left_out, 1505U);
  EXPECT_EQ(std::count(names.begin(), names.end(), "Loud"), 495);
  EXPECT_EQ(std::count(names.begin(), names.end(), "Quiet"), 5);
}

TEST(RankedTest, OfVeryManyTheCauseOfOneThatIsKeptIsKept) {
  std::vector<Finding> many;
  const Finding follows =
      Explained("Follows", Severity::kHigh, R"({"explained_by":["Cause"]})", Theme::kLayers);
  Finding cause = Explained("Cause", Severity::kMedium, "{}", Theme::kLearning);
  // All that rank before it are of another training.
  for (int i = 0; i < 2000; ++i) {
    many.push_back(cause);
    many.back().incident.subject = "rank 9";
    many.back().incident.cost_seconds = 100 + i;
  }
  many.push_back(cause);
  many.push_back(follows);
  const std::vector<Finding> ranked = Ranked(many);
  const auto found = std::find_if(ranked.begin(), ranked.end(),
                                  [](const Finding& f) { return f.rule == "Follows"; });
  ASSERT_NE(found, ranked.end());
  EXPECT_EQ(found->incident.advice, "First do what Cause says.");
  EXPECT_TRUE(std::any_of(ranked.begin(), ranked.end(), [&](const Finding& f) {
    return f.rule == "Cause" && f.incident.subject == follows.incident.subject;
  }));
}

}  // namespace
}  // namespace telltale::rules
