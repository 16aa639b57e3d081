// SPDX-License-Identifier: Apache-2.0
#include "agent/own_cpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/units.h"

namespace telltale::agent {
namespace {

std::vector<format::MetricRow> Idle(double percent) {
  format::MetricRow node;
  node.name = "cpu.idle";
  node.subject = "node";
  node.value = percent;
  format::MetricRow core = node;
  core.subject = "cpu:0";
  core.value = 100;
  return {core, node};
}

TEST(OwnCpu, CostsNothingWhereCoresAreIdle) {
  OwnCpu own;
  EXPECT_FALSE(own.Share(0, kSecond, 4).has_value()) << "nothing to compare with yet";
  own.See(Idle(25));  // One core of four.
  EXPECT_EQ(own.Share(kSecond / 10, 2 * kSecond, 4), 0.0);
}

TEST(OwnCpu, IsAShareOfAllCoresWhereTheyAreScarce) {
  OwnCpu own;
  own.Share(0, kSecond, 2);
  own.See(Idle(0));
  own.See(Idle(10));
  const auto share = own.Share(kSecond / 50, 2 * kSecond, 2);
  ASSERT_TRUE(share.has_value());
  EXPECT_DOUBLE_EQ(*share, 0.01);
  own.See(Idle(0));
  EXPECT_EQ(own.Share(0, 3 * kSecond, 2), 0.0) << "a helper began anew";
}

TEST(OwnCpu, IsNotGuessedWithoutASample) {
  OwnCpu own;
  own.Share(0, kSecond, 2);
  EXPECT_EQ(own.Share(kSecond, 2 * kSecond, 2), 0.0);
}

TEST(OwnCpu, CountsTheProcessesBesideUs) {
  const std::uint64_t before = OwnCpuNs(::getppid(), 0);
  EXPECT_GT(before, 0U);
  // A supervisor that is not our parent is gone: only we are left to count.
  EXPECT_GT(OwnCpuNs(1 << 30, 0), 0U);
}

}  // namespace
}  // namespace telltale::agent
