// SPDX-License-Identifier: Apache-2.0
#include "probe/more_stats.h"

#include <bit>
#include <cmath>
#include <limits>

#include "probe/elements.h"
#include "probe/float_environment.h"

namespace telltale::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
/// Within these bounds two factors can be multiplied and the result is normal.
constexpr double kLarge = 1e100;
constexpr double kSmall = 1e-100;
/// Beyond it every product is 0 or infinite whatever follows; far from the end of its type.
constexpr std::int64_t kMaxExponent = std::int64_t{1} << 40;

bool InRange(double x) {
  const double a = std::fabs(x);
  return a <= kLarge && a >= kSmall;
}

std::int64_t Clamped(std::int64_t exponent) {
  if (exponent > kMaxExponent) return kMaxExponent;
  return exponent < -kMaxExponent ? -kMaxExponent : exponent;
}

/// The product by the bounds of its logarithm; NaN where they do not tell.
double ProductByBounds(const tt_stats& stats, const Magnitudes& magnitudes) {
  constexpr double kBelowAll =
      -1076;  // Half of the smallest double, which rounds to 0, and a little.
  constexpr double kAboveAll = 1025;
  constexpr std::uint32_t kSmallestNormal = 0x00800000;
  if (stats.zero_count > 0) return 0;
  const LogBounds log2(magnitudes, stats.count);
  const bool negative = (magnitudes.signs >> 31) != 0;
  if (log2.high < kBelowAll) return negative ? -0.0 : 0.0;
  // Of what is not normal the bits tell no lower bound.
  if (log2.low > kAboveAll && magnitudes.smallest >= kSmallestNormal) {
    const double infinity = std::numeric_limits<double>::infinity();
    return negative ? -infinity : infinity;
  }
  return kNan;
}

/// Standard deviation of the absolute values from the sums of one pass; NaN where it would be
/// little more than their rounding.
double AbsStdBySums(const tt_stats& stats) {
  constexpr double kPrecise = 1e-2;  // Of the mean square; the sums are good to some 1e-7.
  if (stats.min >= 0 || stats.max <= 0) return stats.std;
  const auto n = static_cast<double>(stats.count);
  const double mean_square = stats.l2 * stats.l2 / n;
  const double variance = mean_square - (stats.l1 / n) * (stats.l1 / n);
  return variance > kPrecise * mean_square ? std::sqrt(variance) : kNan;
}

/// False where a second pass is needed.
bool FromOnePass(const ArrayView& view, const tt_stats& stats, const Magnitudes* magnitudes,
                 tt_more_stats* out) {
  if (magnitudes == nullptr || !magnitudes->known || view.repeats != 1 ||
      stats.nan_count + stats.inf_count != 0) {
    return false;
  }
  out->abs_min = static_cast<double>(std::bit_cast<float>(magnitudes->smallest));
  out->abs_std = AbsStdBySums(stats);
  out->prod = ProductByBounds(stats, *magnitudes);
  return out->abs_std == out->abs_std && out->prod == out->prod;
}

}  // namespace

void Product::Normalise() {
  int exponent = 0;
  mantissa_ = std::frexp(mantissa_, &exponent);
  exponent_ = Clamped(exponent_ + exponent);
}

void Product::Multiply(double factor) {
  if (!InRange(factor) && factor != 0) {
    int exponent = 0;
    factor = std::frexp(factor, &exponent);
    exponent_ = Clamped(exponent_ + exponent);
  }
  mantissa_ *= factor;
  if (!InRange(mantissa_) && mantissa_ != 0) Normalise();
}

void Product::Multiply(const Product& other) {
  mantissa_ *= other.mantissa_;
  exponent_ = Clamped(exponent_ + other.exponent_);
  if (mantissa_ != 0) Normalise();
}

void Product::Raise(std::uint64_t times) {
  Product base = *this;
  if (base.mantissa_ != 0) base.Normalise();
  *this = Product();
  for (; times != 0; times >>= 1) {
    if ((times & 1) != 0) Multiply(base);
    const Product square = base;
    base.Multiply(square);
  }
}

double Product::value() const {
  if (mantissa_ == 0) return 0;
  // Not ldexp: it would set errno. Two factors, since one alone may not be representable.
  double value = mantissa_;
  std::int64_t left = exponent_;
  while (left > 0 && std::isfinite(value)) {
    const std::int64_t step = left > 512 ? 512 : left;
    value *= std::bit_cast<double>(static_cast<std::uint64_t>(step + 1023) << 52);
    left -= step;
  }
  while (left < 0 && value != 0) {
    const std::int64_t step = left < -512 ? -512 : left;
    value *= std::bit_cast<double>(static_cast<std::uint64_t>(step + 1023) << 52);
    left -= step;
  }
  return value;
}

void ComputeMoreStats(const ArrayView& view, const tt_stats& stats, const Magnitudes* magnitudes,
                      tt_more_stats* out) {
  *out = {kNan, kNan, kNan};
  const std::uint64_t finite = stats.count - stats.nan_count - stats.inf_count;
  if (finite == 0) return;
  const DefaultFloatEnvironment environment;
  if (FromOnePass(view, stats, magnitudes, out)) return;
  const double mean = stats.l1 / static_cast<double>(finite);
  double low = std::numeric_limits<double>::infinity();
  double squares = 0;
  double deviations = 0;  // Would be 0 about the exact mean: takes the mean's rounding out.
  Product product;
  ForEachBlock(view, [&](const void* data, std::uint64_t n) {
    double values[kBlock];
    WidenToDouble(data, n, view.dtype, values);
    for (std::uint64_t i = 0; i < n; ++i) {
      const double x = values[i];
      const double a = std::fabs(x);
      if (!(a <= std::numeric_limits<double>::max())) continue;
      low = a < low ? a : low;
      const double d = a - mean;
      deviations += d;
      squares += d * d;
      product.Multiply(x);
    }
  });
  const auto seen = static_cast<double>(finite / view.repeats);
  const double variance = (squares - deviations * deviations / seen) / seen;
  out->abs_min = low;
  out->abs_std = std::sqrt(variance > 0 ? variance : 0);
  if (view.repeats > 1) product.Raise(view.repeats);
  out->prod = product.value();
}

}  // namespace telltale::probe
