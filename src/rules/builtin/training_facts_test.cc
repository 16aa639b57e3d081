// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/training_facts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace telltale::rules {
namespace {

TEST(LearningRatesTest, StepsThatGoBackAgainAndAgainAreCountedToTheEnd) {
  LearningRates rates;
  rates.See("lr", 1, {.step = 0});
  for (int i = 0; i < 2000; ++i) {
    rates.See("lr", 0, {.step = 0});
    rates.See("lr", 1, {.step = format::kStepBound.most});
  }
  EXPECT_EQ(rates.zero_steps(), std::numeric_limits<std::int64_t>::max());
  EXPECT_GE(rates.moving_steps(), 0);
}

}  // namespace
}  // namespace telltale::rules
