// SPDX-License-Identifier: Apache-2.0
#include "rules/action_log.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace telltale::rules {
namespace {

constexpr std::string_view kDecided =
    R"({"key":"f1-a","action":"webhook","rule":"LossSpike","incident":"f1","held":""})";

TEST(ActionLogTest, AnActionIsFollowedToItsEnd) {
  ActionLog log;
  log.OnEvent("action.decided", kDecided);
  log.OnEvent("action.started", R"({"key":"f1-a","keys":["f1-a"]})");
  ASSERT_EQ(log.actions().size(), 1U);
  EXPECT_EQ(log.actions()[0].outcome, "pending");
  log.OnEvent("action.done", R"({"key":"f1-a","outcome":"failed","detail":"no answer"})");
  ASSERT_EQ(log.actions().size(), 1U);
  EXPECT_EQ(log.actions()[0].action, "webhook");
  EXPECT_EQ(log.actions()[0].rule, "LossSpike");
  EXPECT_EQ(log.actions()[0].incident, "f1");
  EXPECT_EQ(log.actions()[0].outcome, "failed");
  EXPECT_EQ(log.actions()[0].detail, "no answer");
}

TEST(ActionLogTest, WhatNothingWasDoneOfSaysWhy) {
  ActionLog log;
  log.OnEvent("action.decided",
              R"({"key":"f1-a","action":"stop","rule":"R","incident":"f1","held":"dry run"})");
  ASSERT_EQ(log.actions().size(), 1U);
  EXPECT_EQ(log.actions()[0].outcome, "dry run");
}

TEST(ActionLogTest, OneMessageOfSeveralFindingsIsTheEndOfEach) {
  ActionLog log;
  log.OnEvent("action.decided", kDecided);
  log.OnEvent("action.decided",
              R"({"key":"f2-a","action":"webhook","rule":"LossSpike","incident":"f2","held":""})");
  log.OnEvent("action.done",
              R"({"key":"f1-a","keys":["f1-a","f2-a"],"outcome":"done","detail":"200"})");
  ASSERT_EQ(log.actions().size(), 2U);
  EXPECT_EQ(log.actions()[0].outcome, "done");
  EXPECT_EQ(log.actions()[1].outcome, "done");
}

TEST(ActionLogTest, WhatIsNoEventOfOursAndWhatIsSaidTwiceIsLeftOut) {
  ActionLog log;
  for (const char* data : {"", "{", "[]", "{}", R"({"key":7})"}) {
    log.OnEvent("action.decided", data);
    log.OnEvent("action.done", data);
  }
  EXPECT_TRUE(log.actions().empty());
  log.OnEvent("action.decided", kDecided);
  log.OnEvent("action.decided", kDecided);
  log.OnEvent("action.done", R"({"key":"other","outcome":"done"})");
  ASSERT_EQ(log.actions().size(), 1U);
  EXPECT_EQ(log.actions()[0].outcome, "pending");
}

TEST(ActionLogTest, NoMoreThanItsBound) {
  ActionLog log;
  for (std::size_t i = 0; i < ActionLog::kMost + 5; ++i) {
    log.OnEvent("action.decided", R"({"key":"k)" + std::to_string(i) + R"("})");
  }
  EXPECT_EQ(log.actions().size(), ActionLog::kMost);
}

}  // namespace
}  // namespace telltale::rules
