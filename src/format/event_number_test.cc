// SPDX-License-Identifier: Apache-2.0
#include "format/event_number.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace telltale::format {
namespace {

TEST(EventNumberTest, OnlyWholeNumbersWithinTheBoundEnter) {
  const auto data = nlohmann::json::parse(
      R"({"zero": 0, "day": 1800000000000000000, "least": -9223372036854775808,
          "most": 9223372036854775807, "beyond": 18446744073709551615, "real": 1.5, "text": "1"})");
  EXPECT_EQ(EventNumber(data, "zero", kTimeBound), 0);
  EXPECT_EQ(EventNumber(data, "day", kTimeBound), 1'800'000'000'000'000'000);
  for (const char* key : {"least", "most", "beyond", "real", "text", "missing"}) {
    EXPECT_EQ(EventNumber(data, key, kTimeBound), std::nullopt) << key;
  }
  EXPECT_EQ(EventNumber(data, "day", kIntBound), std::nullopt);
  EXPECT_EQ(EventNumber(nlohmann::json::array(), "zero", kTimeBound), std::nullopt);
}

}  // namespace
}  // namespace telltale::format
