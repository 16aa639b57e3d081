// SPDX-License-Identifier: Apache-2.0
#include "plan/capture_plan.h"

#include <gtest/gtest.h>

namespace telltale::plan {
namespace {

TEST(CapturePlan, DefaultWantsEveryName) {
  const auto matcher = Matcher::Create({});
  ASSERT_TRUE(matcher.ok());
  EXPECT_TRUE(matcher.value().Wants("conv1.weight"));
  EXPECT_TRUE(matcher.value().Wants(""));
  EXPECT_TRUE(matcher.value().Wants("\xff\n"));
}

TEST(CapturePlan, KnowsWhenNoNameNeedsALook) {
  EXPECT_TRUE(CapturePlan{}.TakesEveryName());
  EXPECT_FALSE((CapturePlan{100, {".*"}, {"bias"}}).TakesEveryName());
  EXPECT_FALSE((CapturePlan{100, {"weight"}, {}}).TakesEveryName());
}

TEST(CapturePlan, ExcludeWinsOverInclude) {
  const auto matcher = Matcher::Create({10, {"weight$", "^head"}, {"bn"}});
  ASSERT_TRUE(matcher.ok());
  EXPECT_TRUE(matcher.value().Wants("conv1.weight"));
  EXPECT_TRUE(matcher.value().Wants("head.bias"));
  EXPECT_FALSE(matcher.value().Wants("conv1.bias"));
  EXPECT_FALSE(matcher.value().Wants("bn1.weight"));
}

TEST(CapturePlan, WrongPatternIsNamed) {
  const auto matcher = Matcher::Create({10, {"(("}, {}});
  ASSERT_FALSE(matcher.ok());
  EXPECT_EQ(matcher.status().code(), Code::kUsage);
  EXPECT_NE(matcher.status().message().find("'(('"), std::string::npos);
}

TEST(CapturePlan, JsonRoundTrips) {
  const CapturePlan plan{25, {"a", "b\""}, {"c"}};
  const auto read = FromJson(ToJson(plan));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value(), plan);
  EXPECT_EQ(FromJson("{}").value(), CapturePlan{});
  for (const char* wrong :
       {"", "[]", R"({"include": 3})", R"({"stats_interval_steps": -1})", R"({"exclude": [1]})"}) {
    EXPECT_EQ(FromJson(wrong).status().code(), Code::kUsage) << wrong;
  }
}

}  // namespace
}  // namespace telltale::plan
