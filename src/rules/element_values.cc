// SPDX-License-Identifier: Apache-2.0
#include "rules/element_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace telltale::rules {
namespace {

/// Of a format with a sign, `exponent_bits` and `fraction_bits`. With infinity the largest exponent
/// is that of NaN and Inf, without only its last fraction is NaN.
double SmallFloat(unsigned bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const unsigned largest = (1U << exponent_bits) - 1;
  const unsigned one = 1U << fraction_bits;
  const unsigned exponent = (bits >> fraction_bits) & largest;
  const unsigned fraction = bits & (one - 1);
  const bool negative = (bits >> (exponent_bits + fraction_bits) & 1U) != 0;
  double value = 0;
  if (exponent == largest && (has_infinity || fraction == one - 1)) {
    value = has_infinity && fraction == 0 ? std::numeric_limits<double>::infinity()
                                          : std::numeric_limits<double>::quiet_NaN();
  } else {
    const int bias = static_cast<int>(largest / 2);
    const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - bias - fraction_bits;
    value = std::ldexp(static_cast<double>(exponent == 0 ? fraction : fraction + one), power);
  }
  return negative ? -value : value;
}

/// Elements of T, each turned into a double by `of`.
template <class T, class Of>
std::vector<double> Values(std::span<const std::byte> bytes, std::size_t limit, Of&& of) {
  std::vector<double> out(std::min(limit, bytes.size() / sizeof(T)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = of(value);
  }
  return out;
}

template <class T>
std::vector<double> Plain(std::span<const std::byte> bytes, std::size_t limit) {
  return Values<T>(bytes, limit, [](T value) { return static_cast<double>(value); });
}

template <class T>
std::vector<double> Small(std::span<const std::byte> bytes, std::size_t limit, int exponent_bits,
                          int fraction_bits, bool has_infinity) {
  return Values<T>(bytes, limit, [=](T value) {
    return SmallFloat(value, exponent_bits, fraction_bits, has_infinity);
  });
}

template <class T>
struct Complex {
  T real, imaginary;
};

template <class T>
std::vector<double> Absolute(std::span<const std::byte> bytes, std::size_t limit) {
  return Values<Complex<T>>(bytes, limit, [](const Complex<T>& z) {
    return std::hypot(static_cast<double>(z.real), static_cast<double>(z.imaginary));
  });
}

}  // namespace

std::optional<std::vector<double>> ElementValues(std::string_view dtype,
                                                 std::span<const std::byte> bytes,
                                                 std::size_t limit) {
  if (dtype == "F32") return Plain<float>(bytes, limit);
  if (dtype == "F64") return Plain<double>(bytes, limit);
  if (dtype == "F16") return Small<std::uint16_t>(bytes, limit, 5, 10, true);
  if (dtype == "BF16") return Small<std::uint16_t>(bytes, limit, 8, 7, true);
  if (dtype == "F8_E4M3") return Small<std::uint8_t>(bytes, limit, 4, 3, false);
  if (dtype == "F8_E5M2") return Small<std::uint8_t>(bytes, limit, 5, 2, true);
  if (dtype == "I64") return Plain<std::int64_t>(bytes, limit);
  if (dtype == "I32") return Plain<std::int32_t>(bytes, limit);
  if (dtype == "I16") return Plain<std::int16_t>(bytes, limit);
  if (dtype == "I8") return Plain<std::int8_t>(bytes, limit);
  if (dtype == "U64") return Plain<std::uint64_t>(bytes, limit);
  if (dtype == "U32") return Plain<std::uint32_t>(bytes, limit);
  if (dtype == "U16") return Plain<std::uint16_t>(bytes, limit);
  if (dtype == "U8") return Plain<std::uint8_t>(bytes, limit);
  if (dtype == "BOOL") {
    return Values<std::uint8_t>(bytes, limit, [](std::uint8_t v) { return v != 0 ? 1.0 : 0.0; });
  }
  if (dtype == "C64") return Absolute<float>(bytes, limit);
  if (dtype == "C128") return Absolute<double>(bytes, limit);
  return std::nullopt;
}

}  // namespace telltale::rules
