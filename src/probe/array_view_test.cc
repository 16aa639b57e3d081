// SPDX-License-Identifier: Apache-2.0
// Arrays of any strides and dtype against an element-by-element walk in long double.
#include "probe/array_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "format/dtypes.h"
#include "probe/elements.h"
#include "probe/more_stats.h"
#include "probe/stats.h"

namespace telltale::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Layout {
  std::vector<std::int64_t> shape, strides;
  std::int64_t first = 0;  ///< Index of the first element in memory.
};

/// Indices in memory of the elements, in C order: by recursion, as the definition has it.
void Walk(const Layout& layout, std::size_t dim, std::int64_t at, std::vector<std::int64_t>* out) {
  if (dim == layout.shape.size()) {
    out->push_back(at);
    return;
  }
  for (std::int64_t i = 0; i < layout.shape[dim]; ++i) {
    Walk(layout, dim + 1, at + i * layout.strides[dim], out);
  }
}

const Layout kLayouts[] = {
    {{}, {}, 3},
    {{0}, {1}, 0},
    {{5, 0, 3}, {1, 1, 1}, 0},
    {{7}, {1}, 0},
    {{7}, {3}, 1},
    {{7}, {-2}, 14},
    {{7}, {0}, 4},
    {{3, 4}, {4, 1}, 0},
    {{4, 3}, {1, 4}, 0},     // Transposed.
    {{3, 4}, {-4, -1}, 11},  // Turned round.
    {{2, 3, 4}, {12, 4, 1}, 0},
    {{4, 2, 3}, {1, 12, 4}, 0},   // Channels last.
    {{5, 1, 7}, {14, 99, 2}, 0},  // A slice with a step.
    {{3, 5, 2}, {0, 2, 1}, 6},    // Expanded.
    {{2, 3, 2}, {7, 0, -1}, 9},
    {{6, 3}, {1, 1}, 0},       // A sliding window.
    {{300, 40}, {1, 301}, 5},  // More than a block.
    {{41, 3, 61}, {200, 0, 3}, 0},
    {{1, 1, 1}, {5, 0, -5}, 2},
    {{2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1},
     {1, 9, 4, 9, 2, 9, 16, 9, 8, 9, 64, 9, 32, 9, 128, 9},
     0},
};

tt_array Array(const Layout& layout, const void* memory, tt_dtype dtype) {
  const auto bytes = static_cast<std::int64_t>(format::DtypeBytes(dtype));
  return {static_cast<const char*>(memory) + layout.first * bytes, dtype,
          static_cast<std::uint32_t>(layout.shape.size()), layout.shape.data(),
          layout.strides.data()};
}

TEST(ArrayView, CopiesAnyStridesInOrder) {
  std::vector<std::uint32_t> memory(20'000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::uint32_t>(i);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(testing::PrintToString(layout.strides));
    std::vector<std::int64_t> expected;
    Walk(layout, 0, layout.first, &expected);
    ArrayView view;
    ASSERT_TRUE(MakeView(Array(layout, memory.data(), TT_DTYPE_U32), &view));
    EXPECT_EQ(view.count, expected.size());
    ASSERT_EQ(view.walk(), expected.size());
    // As a whole, and in pieces that begin anywhere.
    for (const std::uint64_t piece : {std::uint64_t{1} << 40, std::uint64_t{1}, std::uint64_t{5}}) {
      std::vector<std::uint32_t> got(expected.size());
      for (std::uint64_t at = 0; at < got.size(); at += piece) {
        const std::uint64_t n = std::min<std::uint64_t>(piece, got.size() - at);
        CopyElements(view, at, n, got.data() + at);
      }
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(static_cast<std::int64_t>(got[i]), expected[i]) << i;
      }
    }
  }
}

TEST(ArrayView, EachElementBytesIsCopied) {
  std::vector<unsigned char> memory(16 * 100);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 7);
  for (const tt_dtype dtype :
       {TT_DTYPE_U8, TT_DTYPE_F16, TT_DTYPE_I32, TT_DTYPE_F64, TT_DTYPE_C128}) {
    const std::size_t bytes = format::DtypeBytes(dtype);
    const Layout layout{{5, 3}, {1, 20}, 2};
    ArrayView view;
    ASSERT_TRUE(MakeView(Array(layout, memory.data(), dtype), &view));
    std::vector<unsigned char> got(15 * bytes);
    CopyElements(view, 0, 15, got.data());
    std::vector<std::int64_t> expected;
    Walk(layout, 0, layout.first, &expected);
    for (std::size_t i = 0; i < 15; ++i) {
      EXPECT_EQ(std::memcmp(&got[i * bytes], &memory[static_cast<std::size_t>(expected[i]) * bytes],
                            bytes),
                0);
    }
  }
}

TEST(ArrayView, OrderGivenUpMakesDenseMemoryABlock) {
  const float memory[24] = {};
  const Layout dense[] = {{{4, 2, 3}, {1, 12, 4}, 0}, {{3, 8}, {-8, -1}, 23}, {{8, 3}, {1, 8}, 0}};
  for (const Layout& layout : dense) {
    ArrayView view;
    ASSERT_TRUE(MakeView(Array(layout, memory, TT_DTYPE_F32), &view));
    EXPECT_FALSE(view.contiguous());
    ForgetOrder(&view);
    EXPECT_TRUE(view.contiguous());
    EXPECT_EQ(view.data, reinterpret_cast<const unsigned char*>(memory));
    EXPECT_EQ(view.walk(), 24u);
  }
  ArrayView expanded;
  const Layout million{{1 << 20, 3, 1 << 20}, {0, 1, 0}, 0};
  ASSERT_TRUE(MakeView(Array(million, memory, TT_DTYPE_F32), &expanded));
  ForgetOrder(&expanded);
  EXPECT_EQ(expanded.walk(), 3u);
  EXPECT_EQ(expanded.count, 3ULL << 40);
}

/// What the bytes of an element mean, written anew for this test.
long double ValueOf(const unsigned char* at, tt_dtype dtype) {
  const auto load = [at]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  const auto minifloat = [](unsigned bits, int exponent_bits, int fraction_bits, bool has_inf) {
    const unsigned fraction = bits & ((1U << fraction_bits) - 1);
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int top = (1 << exponent_bits) - 1, bias = top / 2;
    const long double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1 : 1;
    if (exponent == top && has_inf) {
      return fraction == 0 ? sign * std::numeric_limits<long double>::infinity()
                           : std::numeric_limits<long double>::quiet_NaN();
    }
    if (exponent == top && fraction == (1U << fraction_bits) - 1) {
      return std::numeric_limits<long double>::quiet_NaN();
    }
    if (exponent == 0)
      return sign * std::ldexp(static_cast<long double>(fraction), 1 - bias - fraction_bits);
    return sign * std::ldexp(static_cast<long double>(fraction + (1U << fraction_bits)),
                             exponent - bias - fraction_bits);
  };
  switch (dtype) {
    case TT_DTYPE_F32:
      return static_cast<long double>(load(float{}));
    case TT_DTYPE_F64:
      return static_cast<long double>(load(double{}));
    case TT_DTYPE_F16:
      return minifloat(load(std::uint16_t{}), 5, 10, true);
    case TT_DTYPE_BF16:
      return minifloat(load(std::uint16_t{}), 8, 7, true);
    case TT_DTYPE_I64:
      return static_cast<long double>(load(std::int64_t{}));
    case TT_DTYPE_I32:
      return load(std::int32_t{});
    case TT_DTYPE_I16:
      return load(std::int16_t{});
    case TT_DTYPE_I8:
      return load(std::int8_t{});
    case TT_DTYPE_U8:
    case TT_DTYPE_BOOL:
      return load(std::uint8_t{});
    case TT_DTYPE_U16:
      return load(std::uint16_t{});
    case TT_DTYPE_U32:
      return load(std::uint32_t{});
    case TT_DTYPE_U64:
      return static_cast<long double>(load(std::uint64_t{}));
    case TT_DTYPE_F8E4M3:
      return minifloat(load(std::uint8_t{}), 4, 3, false);
    case TT_DTYPE_F8E5M2:
      return minifloat(load(std::uint8_t{}), 5, 2, true);
    case TT_DTYPE_C64: {
      float parts[2];
      std::memcpy(parts, at, sizeof parts);
      return std::hypot(static_cast<long double>(parts[0]), static_cast<long double>(parts[1]));
    }
    case TT_DTYPE_C128: {
      double parts[2];
      std::memcpy(parts, at, sizeof parts);
      return std::hypot(static_cast<long double>(parts[0]), static_cast<long double>(parts[1]));
    }
  }
  return 0;
}

struct Expected {
  std::uint64_t count = 0, nan = 0, inf = 0, zero = 0, finite = 0;
  long double min = kInf, max = -kInf, mean = 0, std = 0, l1 = 0, l2 = 0;
  long double abs_min = kInf, abs_std = 0, prod = 1;
};

Expected Expect(const std::vector<long double>& values) {
  Expected e;
  long double sum = 0;
  for (const long double x : values) {
    ++e.count;
    if (std::isnan(x) || std::isinf(x)) {
      ++(std::isnan(x) ? e.nan : e.inf);
      continue;
    }
    ++e.finite;
    e.zero += x == 0 ? 1 : 0;
    e.min = std::min(e.min, x);
    e.max = std::max(e.max, x);
    e.abs_min = std::min(e.abs_min, std::fabs(x));
    sum += x;
    e.l1 += std::fabs(x);
    e.l2 += x * x;
    e.prod *= x;
  }
  if (e.finite == 0) return e;
  const auto n = static_cast<long double>(e.finite);
  e.mean = sum / n;
  for (const long double x : values) {
    if (std::isnan(x) || std::isinf(x)) continue;
    e.std += (x - e.mean) * (x - e.mean);
    e.abs_std += (std::fabs(x) - e.l1 / n) * (std::fabs(x) - e.l1 / n);
  }
  e.std = std::sqrt(e.std / n);
  e.abs_std = std::sqrt(e.abs_std / n);
  e.l2 = std::sqrt(e.l2);
  return e;
}

void ExpectNear(double got, long double expected, long double tolerance, const char* what) {
  EXPECT_LE(std::fabs(static_cast<long double>(got) - expected), tolerance)
      << what << ": " << got << " for " << static_cast<double>(expected);
}

void CheckStats(const tt_array& array, const std::vector<long double>& values) {
  ArrayView view;
  ASSERT_TRUE(MakeView(array, &view));
  ForgetOrder(&view);
  const Expected e = Expect(values);
  for (const Kernels& kernels : {KernelsPortable(), BestKernels()}) {
    tt_stats s;
    Magnitudes magnitudes;
    ComputeViewStats(view, kernels, &s, &magnitudes);
    EXPECT_EQ(s.count, e.count);
    EXPECT_EQ(s.nan_count, e.nan);
    EXPECT_EQ(s.inf_count, e.inf);
    EXPECT_EQ(s.zero_count, e.zero);
    tt_more_stats more;
    ComputeMoreStats(view, s, &magnitudes, &more);
    if (e.finite == 0) {
      EXPECT_TRUE(std::isnan(s.min) && std::isnan(s.l2) && std::isnan(more.abs_min) &&
                  std::isnan(more.abs_std) && std::isnan(more.prod));
      continue;
    }
    const long double magnitude = e.l1 / static_cast<long double>(e.finite);
    ExpectNear(s.min, e.min, std::fabs(e.min) * 1e-15L, "min");
    ExpectNear(s.max, e.max, std::fabs(e.max) * 1e-15L, "max");
    ExpectNear(s.mean, e.mean, 1e-6L * magnitude, "mean");
    ExpectNear(s.std, e.std, 1e-5L * e.std + 1e-12L * magnitude, "std");
    ExpectNear(s.l1, e.l1, 1e-5L * e.l1, "l1");
    ExpectNear(s.l2, e.l2, 1e-5L * e.l2, "l2");
    ExpectNear(more.abs_min, e.abs_min, e.abs_min * 1e-15L, "abs_min");
    ExpectNear(more.abs_std, e.abs_std, 1e-5L * e.abs_std + 1e-7L * magnitude, "abs_std");
    if (std::isfinite(static_cast<double>(e.prod))) {
      ExpectNear(more.prod, e.prod, std::fabs(e.prod) * 1e-10L + 1e-300L, "prod");
    }
  }
}

class EveryDtype : public testing::TestWithParam<int> {};

TEST_P(EveryDtype, StatisticsOfAnyStrides) {
  const auto dtype = static_cast<tt_dtype>(GetParam());
  const std::size_t bytes = format::DtypeBytes(dtype);
  std::mt19937_64 random(11);
  std::vector<unsigned char> memory(20'000 * bytes);
  for (std::size_t i = 0; i < 20'000; ++i) {
    unsigned char* at = &memory[i * bytes];
    // Numbers near 1, so that products stay in range; all bit patterns come in the next test.
    const double x = std::normal_distribution<double>(0.3, 1)(random);
    switch (dtype) {
      case TT_DTYPE_F32:
      case TT_DTYPE_C64:
        for (std::size_t part = 0; part < bytes; part += 4) {
          const auto f = static_cast<float>(x + static_cast<double>(part));
          std::memcpy(at + part, &f, 4);
        }
        break;
      case TT_DTYPE_F64:
      case TT_DTYPE_C128:
        for (std::size_t part = 0; part < bytes; part += 8) {
          const double d = x - static_cast<double>(part);
          std::memcpy(at + part, &d, 8);
        }
        break;
      case TT_DTYPE_F16: {
        const auto bits = static_cast<std::uint16_t>(0x3400 + (random() & 0x8BFF));
        std::memcpy(at, &bits, 2);
        break;
      }
      case TT_DTYPE_BF16: {
        const auto bits = static_cast<std::uint16_t>(0x3F00 + (random() & 0x80FF));
        std::memcpy(at, &bits, 2);
        break;
      }
      default:
        at[0] = static_cast<unsigned char>(random() % 100);
        break;
    }
  }
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(testing::PrintToString(layout.strides));
    std::vector<std::int64_t> indices;
    Walk(layout, 0, layout.first, &indices);
    std::vector<long double> values;
    for (const std::int64_t i : indices) {
      values.push_back(ValueOf(&memory[static_cast<std::size_t>(i) * bytes], dtype));
    }
    CheckStats(Array(layout, memory.data(), dtype), values);
  }
}

TEST_P(EveryDtype, AnyBytes) {
  const auto dtype = static_cast<tt_dtype>(GetParam());
  const std::size_t bytes = format::DtypeBytes(dtype);
  // Of the wide ones a magnitude whose sums stay in range, with NaN and Inf among them.
  std::mt19937_64 random(12);
  const std::int64_t count = bytes == 1 ? 256 : 66'000;
  std::vector<unsigned char> memory(static_cast<std::size_t>(count) * bytes);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<unsigned char>(bytes == 1 ? i : random());
  }
  const bool large = dtype == TT_DTYPE_F32 || dtype == TT_DTYPE_F64 || dtype == TT_DTYPE_C64 ||
                     dtype == TT_DTYPE_C128 || dtype == TT_DTYPE_BF16;
  std::vector<long double> values;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    unsigned char* at = &memory[i * bytes];
    if (large) {
      const long double x = ValueOf(at, dtype);
      if (std::fabs(x) > 1e15L && !std::isinf(x)) std::memset(at, 0, bytes);
      if (i % 97 == 0) std::memset(at, 0xFF, bytes);  // NaN in all of them.
    }
    values.push_back(ValueOf(at, dtype));
  }
  const std::int64_t shape[] = {count};
  CheckStats({memory.data(), dtype, 1, shape, nullptr}, values);
}

INSTANTIATE_TEST_SUITE_P(All, EveryDtype, testing::Range(0, 17), [](const auto& instance) {
  return std::string(format::kDtypes[instance.param].name);
});

TEST(MoreStats, ProductsNeitherOverflowNorUnderflowOnTheWay) {
  std::vector<double> values(2000, 1e300);
  values.resize(4000, 1e-300);
  values.push_back(-7);
  const auto count = static_cast<std::int64_t>(values.size());
  const tt_array array{values.data(), TT_DTYPE_F64, 1, &count, nullptr};
  ArrayView view;
  ASSERT_TRUE(MakeView(array, &view));
  tt_stats stats;
  ComputeViewStats(view, BestKernels(), &stats);
  tt_more_stats more;
  ComputeMoreStats(view, stats, nullptr, &more);
  EXPECT_NEAR(more.prod, -7, 1e-9);

  const auto product = [](double factor, std::uint64_t times) {
    Product p;
    p.Multiply(factor);
    p.Raise(times);
    return p.value();
  };
  EXPECT_EQ(product(2, 1000), std::ldexp(1.0, 1000));
  EXPECT_EQ(product(-1, 1ULL << 62), 1);
  EXPECT_EQ(product(-1, (1ULL << 62) + 1), -1);
  EXPECT_EQ(product(2, 1ULL << 60), kInf);
  EXPECT_EQ(product(0.5, 1ULL << 60), 0);
  EXPECT_EQ(product(0, 5), 0);
  EXPECT_EQ(product(std::numeric_limits<double>::denorm_min(), 1),
            std::numeric_limits<double>::denorm_min());
}

TEST(MoreStats, OnePassAgreesWithTwo) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto values_of = [&](auto&& next) {
    std::vector<float> values(5003);
    for (float& x : values) x = next();
    return values;
  };
  const auto sign = [&] { return random() % 2 != 0 ? -1.0f : 1.0f; };
  const std::vector<std::vector<float>> cases = {
      values_of([&] { return normal(random) * 0.02f; }),
      values_of([&] { return std::fabs(normal(random)); }),
      values_of([&] { return -1 - std::fabs(normal(random)); }),
      values_of(
          [&] { return sign() * (1 + normal(random) * 1e-3f); }),  // Deviation by rounding alone.
      values_of([&] { return sign() * (1 + (random() % 1024) * 1e-6f); }),  // A finite product.
      values_of([&] { return sign() * 3; }),                                // An infinite one.
      values_of([&] { return normal(random) * 1e-42f; }),                   // Not normal.
      values_of([&] { return random() % 3 == 0 ? 0 : normal(random); }),
      {-2.5f},
  };
  for (const Kernels& kernels : {KernelsPortable(), KernelsAvx2(), KernelsAvx512()}) {
    if (kernels.block_f32 == nullptr) continue;
    for (const std::vector<float>& values : cases) {
      const auto count = static_cast<std::int64_t>(values.size());
      ArrayView view;
      ASSERT_TRUE(MakeView({values.data(), TT_DTYPE_F32, 1, &count, nullptr}, &view));
      tt_stats stats;
      Magnitudes magnitudes;
      ComputeViewStats(view, kernels, &stats, &magnitudes);
      tt_more_stats one, two;
      ComputeMoreStats(view, stats, &magnitudes, &one);
      ComputeMoreStats(view, stats, nullptr, &two);
      EXPECT_EQ(one.abs_min, two.abs_min);
      EXPECT_NEAR(one.abs_std, two.abs_std, 1e-5 * two.abs_std);
      EXPECT_EQ(one.prod, two.prod);
      EXPECT_EQ(std::signbit(one.prod), std::signbit(two.prod));
    }
  }
}

TEST(MoreStats, NothingFiniteIsNotANumber) {
  const double values[] = {kNan, kInf};
  const std::int64_t two = 2;
  ArrayView view;
  ASSERT_TRUE(MakeView({values, TT_DTYPE_F64, 1, &two, nullptr}, &view));
  tt_stats stats;
  ComputeViewStats(view, BestKernels(), &stats);
  tt_more_stats more;
  ComputeMoreStats(view, stats, nullptr, &more);
  EXPECT_TRUE(std::isnan(more.abs_min) && std::isnan(more.abs_std) && std::isnan(more.prod));
}

}  // namespace
}  // namespace telltale::probe
