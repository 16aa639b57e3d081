// SPDX-License-Identifier: Apache-2.0
#include "interchange/array_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "format/dtypes.h"
#include "telltale/probe.h"

namespace telltale::interchange {
namespace {

template <class T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(ArrayStatistics, CountsWhatIsNotFiniteApart) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  format::StatisticRow row;
  ASSERT_TRUE(FillStatistics(
      "F32", BytesOf<float>({1, -2, 0, kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 4}),
      &row));
  EXPECT_EQ(row.count, 7U);
  EXPECT_EQ(row.nan_count, 1U);
  EXPECT_EQ(row.inf_count, 2U);
  EXPECT_EQ(row.zero_count, 1U);
  EXPECT_EQ(row.min, -2);
  EXPECT_EQ(row.max, 4);
  EXPECT_DOUBLE_EQ(row.mean, 0.75);
  EXPECT_DOUBLE_EQ(row.std, std::sqrt(4.6875));
  EXPECT_DOUBLE_EQ(row.l1, 7);
  EXPECT_DOUBLE_EQ(row.l2, std::sqrt(21.0));
  EXPECT_TRUE(row.more);
  EXPECT_EQ(row.abs_min, 0);
  EXPECT_DOUBLE_EQ(row.abs_std, std::sqrt(2.1875));
  EXPECT_EQ(row.prod, 0);
}

TEST(ArrayStatistics, KeepsDigitsFarFromZero) {
  format::StatisticRow row;
  ASSERT_TRUE(FillStatistics("F64", BytesOf<double>({1e9 + 1, 1e9 + 2, 1e9 + 3}), &row));
  EXPECT_DOUBLE_EQ(row.std, std::sqrt(2.0 / 3.0));
}

TEST(ArrayStatistics, HasNoExtremesOfNothing) {
  format::StatisticRow row;
  ASSERT_TRUE(FillStatistics("I64", "", &row));
  EXPECT_EQ(row.count, 0U);
  EXPECT_TRUE(std::isnan(row.min));
  EXPECT_TRUE(std::isnan(row.mean));
  EXPECT_EQ(row.l1, 0);
}

/// An imported run's rows and a recorded one's must mean the same, though other code computes them.
TEST(ArrayStatistics, AreThoseThatTheProbeComputes) {
  constexpr std::size_t kElements = 5000;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0.3, 2);
  for (std::uint32_t code = 0; code < format::kDtypeCount; ++code) {
    const format::DtypeInfo& dtype = format::kDtypes[code];
    std::vector<std::uint64_t> memory(2 * kElements);  // Aligned for the probe.
    for (std::uint64_t& word : memory) word = random();
    const std::size_t bytes = kElements * dtype.bytes;
    auto* const content = reinterpret_cast<char*>(memory.data());
    const auto fill = [&]<class T>(T) {
      for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
        const auto value = static_cast<T>(normal(random));
        std::memcpy(content + at, &value, sizeof value);
      }
    };
    // Random bits of these would be of all magnitudes, whose squares are none.
    if (dtype.safetensors == "F32" || dtype.safetensors == "C64") fill(float{});
    if (dtype.safetensors == "F64" || dtype.safetensors == "C128") fill(double{});
    if (dtype.safetensors == "BOOL") {
      for (std::size_t at = 0; at < bytes; ++at) content[at] &= 1;
    }
    format::StatisticRow row;
    if (!FillStatistics(dtype.safetensors, {content, bytes}, &row)) continue;  // No import has it.
    tt_stats probe{};
    ASSERT_EQ(tt_compute_stats(content, kElements, static_cast<tt_dtype>(code), &probe), 0);
    EXPECT_EQ(row.count, probe.count) << dtype.name;
    EXPECT_EQ(row.nan_count, probe.nan_count) << dtype.name;
    EXPECT_EQ(row.inf_count, probe.inf_count) << dtype.name;
    EXPECT_EQ(row.zero_count, probe.zero_count) << dtype.name;
    const auto near = [&](double ours, double theirs, double tolerance) {
      EXPECT_NEAR(ours, theirs, tolerance * std::fabs(ours)) << dtype.name;
    };
    near(row.min, probe.min, 1e-6);
    near(row.max, probe.max, 1e-6);
    EXPECT_NEAR(row.mean, probe.mean, 1e-6 * row.l1 / kElements) << dtype.name;
    near(row.std, probe.std, 1e-5);
    near(row.l1, probe.l1, 1e-5);
    near(row.l2, probe.l2, 1e-5);
  }
}

TEST(ArrayStatistics, KnowsTheTypes) {
  const auto first = [](std::string_view dtype, const std::string& bytes) {
    double value = -1;
    EXPECT_TRUE(FirstElement(dtype, bytes, &value)) << dtype;
    return value;
  };
  EXPECT_EQ(first("F16", BytesOf<std::uint16_t>({0x3e00})), 1.5);
  EXPECT_EQ(first("F16", BytesOf<std::uint16_t>({0x8001})), -std::ldexp(1, -24));
  EXPECT_EQ(first("F16", BytesOf<std::uint16_t>({0xfc00})),
            -std::numeric_limits<double>::infinity());
  EXPECT_EQ(first("BF16", BytesOf<std::uint16_t>({0x3fc0})), 1.5);
  EXPECT_EQ(first("I8", BytesOf<std::int8_t>({-3})), -3);
  EXPECT_EQ(first("U64", BytesOf<std::uint64_t>({7})), 7);
  EXPECT_EQ(first("BOOL", std::string("\1\0", 2)), 1);
  EXPECT_EQ(first("C64", BytesOf<float>({3, 4})), 5);
  EXPECT_EQ(first("C128", BytesOf<double>({3, -4})), 5);
  double value = 0;
  EXPECT_FALSE(FirstElement("F32", "123", &value)) << "no whole number of elements";
  EXPECT_FALSE(FirstElement("F32", "", &value));
  EXPECT_FALSE(FirstElement("Q4", "1234", &value));
}

}  // namespace
}  // namespace telltale::interchange
