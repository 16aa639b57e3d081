// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/event_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/json.h"

namespace telltale::rules {
namespace {

TEST(EventDataTest, IntegersOfAnySizeCanBeComputedWith) {
  const auto data = ParseJson(
      R"({"plain": 7, "negative": -3, "part": 2.9, "huge": 1e300, "least": -1e300,
          "most": 18446744073709551615, "int64": 9223372036854775807,
          "least64": -9223372036854775808, "time_ns": 1700000000123456789, "text": "7", "none": null})");
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(IntegerIn(data, "plain", 1), 7);
  EXPECT_EQ(IntegerIn(data, "negative", 1), -3);
  EXPECT_EQ(IntegerIn(data, "part", 1), 2);
  EXPECT_EQ(IntegerIn(data, "huge", 1), kMostInteger);
  EXPECT_EQ(IntegerIn(data, "least", 1), -kMostInteger);
  EXPECT_EQ(IntegerIn(data, "most", 1), kMostInteger);
  EXPECT_EQ(IntegerIn(data, "int64", 1), kMostInteger);
  EXPECT_EQ(IntegerIn(data, "least64", 1), -kMostInteger);
  EXPECT_EQ(IntegerIn(data, "time_ns", 1), 1700000000123456789);
  EXPECT_EQ(IntegerIn(data, "text", 1), 1);
  EXPECT_EQ(IntegerIn(data, "none", 1), 1);
  EXPECT_EQ(IntegerIn(data, "missing", -1), -1);
  EXPECT_LE(kMostInteger, std::numeric_limits<std::int64_t>::max() - kMostInteger - 1);
}

TEST(EventDataTest, NumbersThatAreNoIntegers) {
  EXPECT_EQ(ToInteger(std::nan(""), -1), -1);
  EXPECT_EQ(ToInteger(INFINITY), kMostInteger);
  EXPECT_EQ(ToInteger(-INFINITY), -kMostInteger);
  EXPECT_EQ(ToCount(std::nan("")), 0u);
  EXPECT_EQ(ToCount(-5), 0u);
  EXPECT_EQ(ToCount(5), 5u);
}

TEST(EventDataTest, CountsOfAnySizeCanBeMultiplied) {
  const auto data = ParseJson(R"({"rows": 64, "huge": 1e300, "negative": -1e300})");
  EXPECT_EQ(CountIn(data, "rows"), 64);
  EXPECT_EQ(CountIn(data, "huge"), kMostCounted);
  EXPECT_EQ(CountIn(data, "negative"), -1);
  EXPECT_EQ(CountIn(data, "missing", -1), -1);
}

}  // namespace
}  // namespace telltale::rules
