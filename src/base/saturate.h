// SPDX-License-Identifier: Apache-2.0
// Sums of numbers that a file says, which may be anything: at the limits instead of beyond them.
#pragma once
#include <cstdint>
#include <limits>

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

/// How far apart they are, never negative.
constexpr std::int64_t Apart(std::int64_t a, std::int64_t b) {
  return a > b ? SaturatingSub(a, b) : SaturatingSub(b, a);
}

/// A sum of numbers that others chose: it stays at the end of the range. Of 10,000 ranks that train
/// for a month the nanoseconds alone exceed 64 bits.
class Sum {
 public:
  constexpr Sum(std::int64_t value = 0) : value_(value) {}    // NOLINT(google-explicit-constructor)
  constexpr operator std::int64_t() const { return value_; }  // NOLINT(google-explicit-constructor)
  constexpr Sum& operator+=(std::int64_t value) {
    value_ = SaturatingAdd(value_, value);
    return *this;
  }
  constexpr Sum& operator-=(std::int64_t value) {
    value_ = SaturatingSub(value_, value);
    return *this;
  }
  constexpr Sum& operator++() { return *this += 1; }

 private:
  std::int64_t value_;
};

}  // namespace telltale
