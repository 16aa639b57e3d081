// SPDX-License-Identifier: Apache-2.0
#include "rules/lifecycle.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

namespace telltale::rules {
namespace {

TEST(SeverityOfCostTest, GrowsWithTheShareOfTheRun) {
  EXPECT_EQ(SeverityOfCost(0.5, 100, Severity::kHigh, std::nullopt), Severity::kInfo);
  EXPECT_EQ(SeverityOfCost(1, 100, Severity::kHigh, std::nullopt), Severity::kLow);
  EXPECT_EQ(SeverityOfCost(5, 100, Severity::kHigh, std::nullopt), Severity::kMedium);
  EXPECT_EQ(SeverityOfCost(20, 100, Severity::kHigh, std::nullopt), Severity::kHigh);
  EXPECT_EQ(SeverityOfCost(150, 100, Severity::kHigh, std::nullopt), Severity::kHigh);
}

TEST(SeverityOfCostTest, DoesNotSwingAtABorder) {
  EXPECT_EQ(SeverityOfCost(17, 100, Severity::kHigh, Severity::kHigh), Severity::kHigh);
  EXPECT_EQ(SeverityOfCost(15, 100, Severity::kHigh, Severity::kHigh), Severity::kMedium);
  EXPECT_EQ(SeverityOfCost(20, 100, Severity::kHigh, Severity::kMedium), Severity::kHigh);
}

TEST(SeverityOfCostTest, IsNeverAboveTheRulesOwn) {
  EXPECT_EQ(SeverityOfCost(90, 100, Severity::kLow, std::nullopt), Severity::kLow);
  EXPECT_EQ(SeverityOfCost(90, 100, Severity::kLow, Severity::kHigh), Severity::kLow);
}

TEST(SeverityOfCostTest, IsTheRulesOwnWhereNoCostIsKnown) {
  EXPECT_EQ(SeverityOfCost(0, 100, Severity::kMedium, std::nullopt), Severity::kMedium);
  EXPECT_EQ(SeverityOfCost(0, 100, Severity::kMedium, Severity::kHigh), Severity::kMedium);
  EXPECT_EQ(SeverityOfCost(5, 0, Severity::kHigh, std::nullopt), Severity::kHigh);
}

TEST(CauseOfTest, ACauseThatExplainsTooLittleSaysHowMuch) {
  Incident incident;
  incident.cost_seconds = 10.2;
  incident.cause = "One item took 22 ms.";
  EXPECT_EQ(CauseOf(incident), "One item took 22 ms.") << "it claims all of the cost";
  incident.explained_seconds = 0.022;
  EXPECT_EQ(CauseOf(incident),
            "One item took 22 ms. This explains 0 % of the lost time; the rest was not explained.");
  incident.explained_seconds = 8.2;
  EXPECT_EQ(CauseOf(incident), "One item took 22 ms.") << "80 % are enough";
}

TEST(AreAlikeTest, NumbersMakeNoOtherMatter) {
  EXPECT_TRUE(
      AreAlike("Data loading takes 12 % of step time", "Data loading takes 9 % of step time"));
  EXPECT_FALSE(AreAlike("Data loading takes 12 % of step time", "Loss is NaN"));
}

TEST(CourseTest, KnowsAgainWhatItHasSaid) {
  const auto says = [](std::string message) {
    Incident incident;
    incident.message = std::move(message);
    return incident;
  };
  Course course;
  EXPECT_FALSE(course.HasSaid(says("")));
  course.Say(says("The loss jumped and came back"));
  course.Say(says("The loss jumped 2 times"));
  course.Say(says("The loss jumped 3 times"));
  EXPECT_TRUE(course.HasSaid(says("The loss jumped and came back")));
  EXPECT_TRUE(course.HasSaid(says("The loss jumped 17 times")));
  EXPECT_FALSE(course.HasSaid(says("The loss is NaN")));
  // One that words it anew each time takes no memory for it.
  for (std::size_t i = 0; i < 1000; ++i) course.Say(says(std::string(i, 'x')));
  EXPECT_FALSE(course.HasSaid(says("The loss jumped and came back")));
  EXPECT_TRUE(course.HasSaid(says(std::string(999, 'x'))));
}

}  // namespace
}  // namespace telltale::rules
