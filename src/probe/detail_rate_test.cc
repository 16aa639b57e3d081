// SPDX-License-Identifier: Apache-2.0
#include "probe/detail_rate.h"

#include <gtest/gtest.h>

namespace telltale::probe {
namespace {

constexpr std::uint64_t kSecondTicks = 1'000'000;

std::uint32_t PerSecond(std::uint32_t spans) { return spans << format::kControlDetailShift; }

class DetailRateTest : public testing::Test {
 protected:
  DetailRateTest() { rate_.Init(kSecondTicks); }

  /// Passes of `spans` spans, one each `every` ticks, for a second; how many were recorded whole.
  int Recorded(std::uint32_t flags, int spans, std::uint64_t every) {
    int recorded = 0;
    for (std::uint64_t passed = 0; passed < kSecondTicks; passed += every) {
      now_ += every;
      const DetailRate::Pass pass = rate_.Begins(flags, now_);
      thinned_ += pass.thinned;
      if (!pass.wanted) continue;
      ++recorded;
      for (int i = 0; i < spans; ++i) rate_.Wrote();
    }
    return recorded;
  }

  DetailRate rate_{};
  std::uint64_t now_ = 5 * kSecondTicks;
  std::uint64_t thinned_ = 0;
};

TEST_F(DetailRateTest, NothingIsRecordedWhereTheAgentGivesNoRoom) {
  EXPECT_EQ(Recorded(0, 10, 1000), 0);
  EXPECT_EQ(Recorded(format::kControlWantAll, 10, 1000), 0);
  EXPECT_EQ(thinned_, 0U);
}

TEST_F(DetailRateTest, EveryPassIsRecordedBelowTheRate) {
  EXPECT_EQ(Recorded(PerSecond(20'000), 10, 1000), 1000);
  EXPECT_EQ(Recorded(PerSecond(20'000), 10, 1000), 1000);
  EXPECT_EQ(thinned_, 0U);
}

TEST_F(DetailRateTest, AboveItWholePassesAreLeftOutAndCounted) {
  Recorded(PerSecond(20'000), 100, 1000);  // What was saved up is used.
  Recorded(PerSecond(20'000), 100, 1000);
  thinned_ = 0;
  const int recorded = Recorded(PerSecond(20'000), 100, 1000);
  EXPECT_NEAR(recorded, 200, 2);
  EXPECT_EQ(thinned_, static_cast<std::uint64_t>(1000 - recorded) * 100);
}

TEST_F(DetailRateTest, OnePassOfAnySizeIsRecordedAndPaidForInASecond) {
  EXPECT_TRUE(rate_.Begins(PerSecond(100), now_).wanted);
  for (int i = 0; i < 100'000; ++i) rate_.Wrote();
  EXPECT_FALSE(rate_.Begins(PerSecond(100), now_ += 1).wanted);
  EXPECT_FALSE(rate_.Begins(PerSecond(100), now_ += kSecondTicks / 10).wanted);
  EXPECT_TRUE(rate_.Begins(PerSecond(100), now_ += kSecondTicks).wanted);
}

TEST_F(DetailRateTest, AroundAFindingEachPassIsRecorded) {
  EXPECT_EQ(Recorded(format::kControlDetailAll, 1000, 1000), 1000);
  EXPECT_EQ(Recorded(PerSecond(1) | format::kControlDetailAll, 1000, 1000), 1000);
  EXPECT_EQ(thinned_, 0U);
}

}  // namespace
}  // namespace telltale::probe
