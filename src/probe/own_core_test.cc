// SPDX-License-Identifier: Apache-2.0
#include "probe/own_core.h"

#include <gtest/gtest.h>

#include <ctime>

namespace telltale::probe {
namespace {

TEST(OwnCore, ACaptureThatWasPreemptedCostsItsProcessorTime) {
  EXPECT_EQ(KeptFromCoreNs({1'000, 3}, {2'001'000, 3}, 42'000'000, 42'000'000), 40'000'000U);
}

TEST(OwnCore, NoMoreThanTheCaptureItselfTook) {
  // The rest was before it began.
  EXPECT_EQ(KeptFromCoreNs({0, 0}, {1'000'000, 0}, 41'000'000, 5'000'000), 5'000'000U);
}

TEST(OwnCore, WhatItWaitedForIsItsCost) {
  EXPECT_EQ(KeptFromCoreNs({0, 3}, {2'000'000, 4}, 42'000'000, 42'000'000), 0U);
}

TEST(OwnCore, WhatTheClocksCannotTellIsNothing) {
  EXPECT_EQ(KeptFromCoreNs({0, 0}, {1'000'000, 0}, 1'040'000, 1'040'000), 0U);
  EXPECT_EQ(KeptFromCoreNs({0, 0}, {2'000'000, 0}, 1'000'000, 1'000'000), 0U);
  EXPECT_EQ(KeptFromCoreNs({5'000, 0}, {0, 0}, 9'000'000, 9'000'000), 0U);
}

/// What this thread has computed.
std::int64_t ThreadNs() {
  timespec now{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

TEST(OwnCore, WhatWasComputedSinceTheLastTickCounts) {
  std::uint64_t sum = 0;
  for (int round = 0; round < 50; ++round) {
    CoreTime before;
    CoreTime after;
    const std::int64_t begin = ThreadNs();
    ASSERT_TRUE(ReadCoreTime(&before));
    // Without a look at a clock of the thread, which would charge it.
    for (int i = 0; i < 1'000'000; ++i) {
      sum += static_cast<std::uint64_t>(i);
      asm volatile("" : "+r"(sum));
    }
    ASSERT_TRUE(ReadCoreTime(&after));
    const std::int64_t computed = ThreadNs() - begin;
    EXPECT_GE(static_cast<std::int64_t>(after.cpu_ns - before.cpu_ns), computed / 2);
  }
}

TEST(OwnCore, TheKernelTellsOfThisThread) {
  CoreTime before;
  CoreTime after;
  ASSERT_TRUE(ReadCoreTime(&before));
  do {
    ASSERT_TRUE(ReadCoreTime(&after));
  } while (after.cpu_ns == before.cpu_ns);
  EXPECT_GT(after.cpu_ns, before.cpu_ns);
}

}  // namespace
}  // namespace telltale::probe
