// SPDX-License-Identifier: Apache-2.0
#include "collect/reading_budget.h"

#include <gtest/gtest.h>

namespace telltale::collect {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1000 * kMs;
constexpr double kGiB = 1073741824;

TEST(ReadingBudget, SeveralShortReadingsAreMadeAtOnce) {
  ReadingBudget budget;
  int readings = 0;
  for (; budget.Allows(0, kGiB); ++readings) budget.Take(0, kGiB, 2 * kMs);
  EXPECT_EQ(readings, 11) << "until more than 20 ms are used up";
  EXPECT_FALSE(budget.Allows(199 * kMs, kGiB));
  EXPECT_TRUE(budget.Allows(200 * kMs, kGiB)) << "a hundred times what was too much";
}

TEST(ReadingBudget, AllReadingsTakeOnePercentOfTheTime) {
  ReadingBudget budget;
  std::int64_t spent_ns = 0;
  for (std::int64_t now_ns = 0; now_ns < 1000 * kSecond; now_ns += kSecond) {
    // 16 processes, each of which is ready for a reading at each moment.
    for (int process = 0; process < 16; ++process) {
      if (!budget.Allows(now_ns, 3 * kGiB)) continue;
      EXPECT_EQ(budget.Take(now_ns, 3 * kGiB, 70 * kMs), 7 * kSecond);
      spent_ns += 70 * kMs;
    }
  }
  EXPECT_LE(spent_ns, 10 * kSecond + 2 * 70 * kMs);
  EXPECT_GE(spent_ns, 9 * kSecond);
}

TEST(ReadingBudget, AProcessIsTooLargeWhereItsReadingWouldTakeTooLong) {
  ReadingBudget budget;
  EXPECT_TRUE(budget.Allows(0, 60 * kGiB)) << "10 ms a GiB, as far as is known";
  EXPECT_FALSE(budget.Allows(0, 70 * kGiB));
  // A kernel, or a machine, that is five times as slow.
  budget.Take(0, 10 * kGiB, 500 * kMs);
  EXPECT_FALSE(budget.Allows(3600 * kSecond, 60 * kGiB));
  EXPECT_TRUE(budget.Allows(3600 * kSecond, 12 * kGiB));
}

TEST(ReadingBudget, AShortReadingSaysNothingOfLargerProcesses) {
  ReadingBudget budget;
  // Of a small process most of the time goes to other things than its pages.
  budget.Take(0, kGiB / 32, 5 * kMs);
  EXPECT_TRUE(budget.Allows(kSecond, 60 * kGiB));
}

}  // namespace
}  // namespace telltale::collect
