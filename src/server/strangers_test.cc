// SPDX-License-Identifier: Apache-2.0
#include "server/strangers.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace telltale::server {
namespace {

TEST(StrangersTest, OneTooManyOfAnAddressSendsItsOldestAwayThatHasNotAsked) {
  Strangers strangers;
  std::vector<Strangers::Id> ids;
  for (std::size_t i = 0; i < Strangers::kMostOfAddress; ++i) {
    const auto entered = strangers.Enter("10.0.0.1");
    EXPECT_FALSE(entered.leaves);
    ids.push_back(entered.id);
  }
  EXPECT_FALSE(strangers.Enter("10.0.0.2").leaves);
  strangers.SetAsked(ids[0], true);
  EXPECT_EQ(strangers.Enter("10.0.0.1").leaves, ids[1]);
  strangers.SetAsked(ids[0], false);
  EXPECT_EQ(strangers.Enter("10.0.0.1").leaves, ids[0]);
  EXPECT_EQ(strangers.size(), Strangers::kMostOfAddress + 1);
}

TEST(StrangersTest, WhereAllHaveAskedTheOldestGoes) {
  Strangers strangers;
  std::vector<Strangers::Id> ids;
  for (std::size_t i = 0; i < Strangers::kMostOfAddress; ++i) {
    ids.push_back(strangers.Enter("::1").id);
    strangers.SetAsked(ids.back(), true);
  }
  // The new one has not asked either: it may not send itself away.
  const auto entered = strangers.Enter("::1");
  EXPECT_EQ(entered.leaves, ids[0]);
}

TEST(StrangersTest, OneTooManyInAllIsAtTheCostOfTheAddressWithTheMost) {
  Strangers strangers;
  const auto quiet = strangers.Enter("quiet").id;
  std::set<Strangers::Id> loud;
  for (std::size_t i = 0; i < Strangers::kMostOfAddress; ++i) {
    loud.insert(strangers.Enter("loud").id);
  }
  int others = 0;
  while (strangers.size() < Strangers::kMost) {
    strangers.Enter("other " + std::to_string(others++ / 8));
  }
  const auto entered = strangers.Enter("new");
  ASSERT_TRUE(entered.leaves);
  EXPECT_TRUE(loud.contains(*entered.leaves));
  strangers.Leave(quiet);
  strangers.Leave(quiet);  // Twice is once.
  EXPECT_EQ(strangers.size(), Strangers::kMost - 1);
}

TEST(GuessesTest, AFewAreFreeAndTimeForgivesThem) {
  Guesses guesses;
  std::int64_t now_ns = 5'000'000'000;
  for (std::size_t i = 0; i < Guesses::kFree; ++i) EXPECT_FALSE(guesses.Wrong(now_ns));
  EXPECT_TRUE(guesses.Wrong(now_ns));
  now_ns += Guesses::kDelayNs - 1;
  EXPECT_TRUE(guesses.Wrong(now_ns));
  now_ns += 1;
  EXPECT_FALSE(guesses.Wrong(now_ns));
  EXPECT_TRUE(guesses.Wrong(now_ns));
  now_ns += 1'000 * Guesses::kDelayNs;
  for (std::size_t i = 0; i < Guesses::kFree; ++i) EXPECT_FALSE(guesses.Wrong(now_ns));
  EXPECT_TRUE(guesses.Wrong(now_ns));
}

}  // namespace
}  // namespace telltale::server
