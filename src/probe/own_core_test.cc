// SPDX-License-Identifier: Apache-2.0
#include "probe/own_core.h"

#include <gtest/gtest.h>

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
