// SPDX-License-Identifier: Apache-2.0
#include "run/plain_lines.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::run {
namespace {

constexpr std::int64_t kStart = 5 * kSecond;

TEST(PlainLines, SaysOnceAMinuteHowFarTheTrainingIs) {
  PlainLines lines(kStart);
  StatusFacts facts;
  facts.step = 18400;
  facts.steps_per_second = 1.83;
  facts.has_loss = true;
  facts.loss = 2.22;
  facts.overhead_share = 0.0041;
  const auto due = [&](std::int64_t seconds) {
    return lines.Due(kStart + seconds * kSecond, seconds * kSecond, facts, false);
  };
  EXPECT_EQ(due(59), "");
  const std::string line = due(60);
  EXPECT_EQ(line, "telltale " + LocalTime(60 * kSecond) +
                      " step 18,400  1.8 steps/s  loss 2.22  +0.41 %");
  facts.step = 18500;
  EXPECT_EQ(due(119), "");
  EXPECT_NE(due(120).find(" step 18,500  "), std::string::npos);
  EXPECT_EQ(due(180), "") << "nothing has changed";
  facts.step = 18501;
  EXPECT_NE(due(240).find(" step 18,501  "), std::string::npos);
}

}  // namespace
}  // namespace telltale::run
