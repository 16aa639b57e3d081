// SPDX-License-Identifier: Apache-2.0
#include "rules/element_values.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/dtypes.h"

namespace telltale::rules {
namespace {

template <class T, std::size_t n>
std::vector<double> Of(std::string_view dtype, const std::array<T, n>& elements,
                       std::size_t limit = 100) {
  const auto values = ElementValues(dtype, std::as_bytes(std::span(elements)), limit);
  EXPECT_TRUE(values.has_value()) << dtype;
  return values.value_or(std::vector<double>());
}

TEST(ElementValues, AreDoublesOfEachDtype) {
  EXPECT_EQ(Of("F32", std::array{1.5F, -2.0F}), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(Of("F64", std::array{1e300}), (std::vector<double>{1e300}));
  EXPECT_EQ(Of("I64", std::array<std::int64_t, 2>{-1, 1LL << 40}),
            (std::vector<double>{-1, 1099511627776.0}));
  EXPECT_EQ(Of("U16", std::array<std::uint16_t, 1>{65535}), (std::vector<double>{65535}));
  EXPECT_EQ(Of("BOOL", std::array<std::uint8_t, 2>{0, 255}), (std::vector<double>{0, 1}));
  EXPECT_EQ(Of("C64", std::array{std::complex<float>(3, -4)}), (std::vector<double>{5}));
  // One, the largest, the smallest, minus two.
  EXPECT_EQ(Of("F16", std::array<std::uint16_t, 4>{0x3C00, 0x7BFF, 0x0001, 0xC000}),
            (std::vector<double>{1, 65504, std::ldexp(1.0, -24), -2}));
  EXPECT_EQ(Of("BF16", std::array<std::uint16_t, 2>{0x3F80, 0xC040}), (std::vector<double>{1, -3}));
  EXPECT_EQ(Of("F8_E4M3", std::array<std::uint8_t, 3>{0x38, 0x7E, 0x01}),
            (std::vector<double>{1, 448, std::ldexp(1.0, -9)}));
  EXPECT_EQ(Of("F8_E5M2", std::array<std::uint8_t, 2>{0x3C, 0x7B}),
            (std::vector<double>{1, 57344}));
}

TEST(ElementValues, WhatIsNotFiniteStaysSo) {
  const auto half = Of("F16", std::array<std::uint16_t, 3>{0x7C00, 0xFC00, 0x7E00});
  EXPECT_EQ(half[0], HUGE_VAL);
  EXPECT_EQ(half[1], -HUGE_VAL);
  EXPECT_TRUE(std::isnan(half[2]));
  EXPECT_TRUE(std::isnan(Of("F8_E4M3", std::array<std::uint8_t, 1>{0x7F})[0]));
}

TEST(ElementValues, StopAtTheLimitAndAtTheEnd) {
  EXPECT_EQ(Of("F32", std::array{1.0F, 2.0F, 3.0F}, 2), (std::vector<double>{1, 2}));
  const std::array<std::byte, 7> torn{};
  EXPECT_EQ(ElementValues("F32", torn, 100).value_or(std::vector<double>()).size(), 1U);
  EXPECT_FALSE(ElementValues("F4", torn, 100).has_value());
}

TEST(ElementValues, KnowEveryDtypeOfTheFormat) {
  const std::array<std::byte, 16> zeros{};
  for (const format::DtypeInfo& dtype : format::kDtypes) {
    const auto values = ElementValues(dtype.safetensors, zeros, 100);
    ASSERT_TRUE(values.has_value()) << dtype.name;
    EXPECT_EQ(values->size(), 16U / dtype.bytes) << dtype.name;
  }
}

}  // namespace
}  // namespace telltale::rules
