// SPDX-License-Identifier: Apache-2.0
#include "run/restart.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::run {
namespace {

TEST(RestartPolicy, IsBackWithinFiveSecondsAlways) {
  RestartPolicy policy;
  std::int64_t now = 0;
  for (int i = 0; i < RestartPolicy::kMaxQuickFailures; ++i) {
    policy.Started(now);
    const auto again = policy.Died(now);
    ASSERT_TRUE(again.has_value()) << i;
    EXPECT_GE(*again - now, RestartPolicy::kFirstDelayNs);
    EXPECT_LE(*again - now, 4 * kSecond) << i << ": the process must start within the 5 s too";
    now = *again;
  }
  policy.Started(now);
  EXPECT_FALSE(policy.Died(now).has_value());
}

TEST(RestartPolicy, ALongLifeForgives) {
  RestartPolicy policy;
  std::int64_t now = 0;
  for (int i = 0; i < 100; ++i) {
    policy.Started(now);
    now += RestartPolicy::kLongLifeNs;
    const auto again = policy.Died(now);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(*again, now + RestartPolicy::kFirstDelayNs);
  }
}

}  // namespace
}  // namespace telltale::run
