// SPDX-License-Identifier: Apache-2.0
// Arithmetic on numbers that a file says, which may be anything: at the limits instead of beyond
// them.
#pragma once
#include <compare>
#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

namespace telltale {

constexpr std::int64_t SaturatingAdd(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<std::int64_t>::min()
               : std::numeric_limits<std::int64_t>::max();
}

constexpr std::int64_t SaturatingSub(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  if (!__builtin_sub_overflow(a, b, &difference)) return difference;
  return b > 0 ? std::numeric_limits<std::int64_t>::min()
               : std::numeric_limits<std::int64_t>::max();
}

constexpr std::int64_t SaturatingMul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) != (b < 0) ? std::numeric_limits<std::int64_t>::min()
                            : std::numeric_limits<std::int64_t>::max();
}

/// Without its part behind the point; 0 of what is no number.
constexpr std::int64_t SaturatingCast(double value) {
  // 2^63, the first that is too large; its negative is the smallest that is not.
  constexpr double kEnd = 9223372036854775808.0;
  if (value >= kEnd) return std::numeric_limits<std::int64_t>::max();
  if (value < -kEnd) return std::numeric_limits<std::int64_t>::min();
  return value == value ? static_cast<std::int64_t>(value) : 0;
}

/// To the nearest, halves away from zero; 0 of what is no number.
constexpr std::int64_t SaturatingRound(double value) {
  const std::int64_t whole = SaturatingCast(value);
  // What has a part behind the point is below 2^52, and what is left of it is exact.
  const double rest = value - static_cast<double>(whole);
  if (rest >= 0.5 && rest < 1) return whole + 1;
  if (rest <= -0.5 && rest > -1) return whole - 1;
  return whole;
}

/// How far apart they are, never negative.
constexpr std::int64_t Apart(std::int64_t a, std::int64_t b) {
  return a > b ? SaturatingSub(a, b) : SaturatingSub(b, a);
}

/// A sum of numbers that others chose: it stays at the ends of the range, and so does what is
/// reckoned with it. Of 10,000 ranks that train for a month the nanoseconds alone exceed 64 bits.
/// It becomes a plain integer by name only, as plain arithmetic would go on beyond the ends.
class Sum {
 public:
  constexpr Sum() = default;
  template <std::integral Integer>
  constexpr Sum(Integer value)  // NOLINT(google-explicit-constructor)
      : value_(std::in_range<std::int64_t>(value) ? static_cast<std::int64_t>(value)
                                                  : std::numeric_limits<std::int64_t>::max()) {}

  constexpr std::int64_t value() const { return value_; }
  explicit constexpr operator std::int64_t() const { return value_; }
  explicit constexpr operator double() const { return static_cast<double>(value_); }

  constexpr Sum& operator+=(Sum more) {
    value_ = SaturatingAdd(value_, more.value_);
    return *this;
  }
  constexpr Sum& operator-=(Sum less) {
    value_ = SaturatingSub(value_, less.value_);
    return *this;
  }
  constexpr Sum& operator*=(Sum times) {
    value_ = SaturatingMul(value_, times.value_);
    return *this;
  }
  constexpr Sum& operator++() { return *this += 1; }
  friend constexpr Sum operator+(Sum a, Sum b) { return a += b; }
  friend constexpr Sum operator-(Sum a, Sum b) { return a -= b; }
  friend constexpr Sum operator*(Sum a, Sum b) { return a *= b; }
  friend constexpr bool operator==(const Sum&, const Sum&) = default;
  friend constexpr auto operator<=>(const Sum&, const Sum&) = default;

 private:
  std::int64_t value_ = 0;
};

}  // namespace telltale
