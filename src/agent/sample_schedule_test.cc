// SPDX-License-Identifier: Apache-2.0
#include "agent/sample_schedule.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::agent {
namespace {

constexpr std::int64_t kInterval = 500 * kMs;

TEST(SampleSchedule, TheFirstIsDueAtOnceAndOnlyOnce) {
  FakeClock clock;
  SampleSchedule samples(kInterval, &clock);
  EXPECT_TRUE(samples.Due());
  EXPECT_FALSE(samples.Due());
  EXPECT_EQ(samples.next_ns(), clock.MonotonicNs() + kInterval);
}

TEST(SampleSchedule, KeepsItsPaceThoughEachIsALittleLate) {
  FakeClock clock;
  SampleSchedule samples(kInterval, &clock);
  const std::int64_t begin = clock.MonotonicNs();
  for (int i = 0; i < 100; ++i) {
    clock.monotonic_ns = begin + i * kInterval + 20 * kMs;
    EXPECT_TRUE(samples.Due()) << i;
    EXPECT_EQ(samples.next_ns(), begin + (i + 1) * kInterval);
  }
}

TEST(SampleSchedule, NoneFollowsRightAfterALateOne) {
  for (std::int64_t late = 0; late <= 4 * kInterval; late += 10 * kMs) {
    FakeClock clock;
    SampleSchedule samples(kInterval, &clock);
    ASSERT_TRUE(samples.Due());
    clock.Advance(kInterval + late);
    ASSERT_TRUE(samples.Due());
    // What was missed is not made up for either: one sample, and the next on its own.
    clock.Advance(kInterval / 2 - 1);
    EXPECT_FALSE(samples.Due()) << late / kMs << " ms late";
    clock.Advance(kInterval / 2 + 1);
    EXPECT_TRUE(samples.Due()) << late / kMs << " ms late";
  }
}

}  // namespace
}  // namespace telltale::agent
