// SPDX-License-Identifier: Apache-2.0
#include "rules/lifecycle.h"

#include <gtest/gtest.h>

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
  Incident a, b;
  a.message = "Data loading takes 12 % of step time";
  b.message = "Data loading takes 9 % of step time";
  EXPECT_TRUE(AreAlike(a, b));
  b.message = "Loss is NaN";
  EXPECT_FALSE(AreAlike(a, b));
}

}  // namespace
}  // namespace telltale::rules
