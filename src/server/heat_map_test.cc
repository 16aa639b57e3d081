// SPDX-License-Identifier: Apache-2.0
#include "server/heat_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"

namespace telltale::server {
namespace {

using nlohmann::json;

std::uint8_t ByteAt(const std::string& bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes.at(at));
}

std::uint32_t NumberAt(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{ByteAt(bytes, at + i)} << (8 * i);
  return value;
}

TEST(HeatMapTest, BytesAreAHeadAndACellEach) {
  HeatMap map;
  map.rows = {"cpu:0", "cpu:\xff"};
  map.unit = "percent";
  map.from_ns = -7;
  map.width_ns = 20;
  map.columns = 3;
  map.values = {0, 50, 100, NAN, 0.4F, 99.9F};
  const std::string bytes = HeatBytes(map);
  EXPECT_EQ(bytes.substr(0, 4), "TTHM");
  EXPECT_EQ(NumberAt(bytes, 4), kHeatVersion);
  const std::size_t head_bytes = NumberAt(bytes, 8);
  const json head = ParseJson(bytes.substr(12, head_bytes));
  EXPECT_EQ(head["rows"].size(), 2U);
  EXPECT_EQ(head["rows"][0], "cpu:0");
  EXPECT_EQ(head["unit"], "percent");
  EXPECT_EQ(head["from"], -7);
  EXPECT_EQ(head["width"], 20);
  EXPECT_EQ(head["columns"], 3);
  EXPECT_EQ(head["low"], 0);
  EXPECT_EQ(head["high"], 100);
  ASSERT_EQ(bytes.size(), 12 + head_bytes + map.values.size());
  const std::vector<int> expected = {0, 127, 254, kHeatNone, 1, 254};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(ByteAt(bytes, 12 + head_bytes + i), expected[i]) << i;
  }
}

TEST(HeatMapTest, TheScaleReachesAsFarAsTheValues) {
  HeatMap map;
  map.rows = {"a"};
  map.unit = "bytes";
  map.columns = 4;
  const float most = std::numeric_limits<float>::max();
  map.values = {-most, 0, most, std::numeric_limits<float>::infinity()};
  std::string bytes = HeatBytes(map);
  const auto cell = [&](std::size_t i) { return ByteAt(bytes, bytes.size() - map.columns + i); };
  EXPECT_EQ(cell(0), 0);
  EXPECT_EQ(cell(1), 127);
  EXPECT_EQ(cell(2), 254);
  EXPECT_EQ(cell(3), kHeatNone);
  // Nothing but noughts, and nothing at all.
  map.values = {0, 0, 0, NAN};
  bytes = HeatBytes(map);
  EXPECT_EQ(cell(0), 0);
  EXPECT_EQ(cell(3), kHeatNone);
}

TEST(HeatMapTest, JsonSaysTheSame) {
  HeatMap map;
  map.rows = {"cpu:0", "cpu:1"};
  map.unit = "percent";
  map.from_ns = 5;
  map.width_ns = 10;
  map.columns = 2;
  map.values = {0, 12.34F, NAN, 100};
  EXPECT_EQ(HeatJson(map), R"({"rows":["cpu:0","cpu:1"],"t":[5,15],)"
                           R"("values":[[0,12.3],[null,100]],"unit":"percent"})");
}

}  // namespace
}  // namespace telltale::server
