// SPDX-License-Identifier: Apache-2.0
#include "rules/registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace telltale::rules {
namespace {

TEST(ParametersTest, NumbersThatARunSaysStayWhereSumsOfThemHold) {
  const RuleEntry* const entry = FindRule("HungTraining");
  ASSERT_NE(entry, nullptr);
  Parameters p(*entry->desc);
  const auto set = [&](double value) { EXPECT_TRUE(p.Set("min_seconds", value).ok()); };
  set(30);
  EXPECT_EQ(p.GetInt("min_seconds"), 30);
  EXPECT_EQ(p.GetNs("min_seconds"), 30'000'000'000);
  set(1e300);
  EXPECT_EQ(p.GetInt("min_seconds"), 1'000'000'000'000'000);
  EXPECT_EQ(p.GetNs("min_seconds"), format::kLengthBound.most);
  set(-1e300);
  EXPECT_EQ(p.GetInt("min_seconds"), -1'000'000'000'000'000);
  EXPECT_EQ(p.GetNs("min_seconds"), 0);
  set(std::nan(""));
  EXPECT_EQ(p.GetInt("min_seconds"), 0);
  EXPECT_EQ(p.GetNs("min_seconds"), 0);
}

/// A run names its rules' parameters itself.
TEST(ParametersTest, EveryRuleTakesAnyNumbers) {
  for (const RuleEntry& entry : Registry()) {
    for (const double value : {1e300, -1e300, 1e15, std::nan("")}) {
      Parameters p(*entry.desc);
      for (const ParameterDesc& one : entry.desc->parameters) {
        if (p.IsText(one.name)) continue;
        EXPECT_TRUE(p.Set(one.name, value).ok());
      }
      EXPECT_NE(entry.make(p), nullptr) << entry.desc->name;
    }
  }
}

}  // namespace
}  // namespace telltale::rules
