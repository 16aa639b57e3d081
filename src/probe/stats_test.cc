// SPDX-License-Identifier: Apache-2.0
// Every kernel against a reference in long double, for every dtype.
#include "probe/stats.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace telltale::probe {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Reference {
  std::uint64_t nan = 0, inf = 0, zero = 0, finite = 0;
  long double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0;
};

Reference Refer(const std::vector<double>& values) {
  Reference r;
  long double sum = 0;
  for (const double x : values) {
    if (std::isnan(x)) {
      ++r.nan;
    } else if (std::isinf(x)) {
      ++r.inf;
    } else {
      r.min = r.finite == 0 ? x : std::min<long double>(r.min, x);
      r.max = r.finite == 0 ? x : std::max<long double>(r.max, x);
      ++r.finite;
      r.zero += x == 0 ? 1 : 0;
      sum += x;
      r.l1 += std::fabs(x);
      r.l2 += static_cast<long double>(x) * x;
    }
  }
  if (r.finite == 0) return r;
  r.mean = sum / r.finite;
  for (const double x : values) {
    if (std::isfinite(x)) r.std += (x - r.mean) * (x - r.mean);
  }
  r.std = std::sqrt(r.std / r.finite);
  r.l2 = std::sqrt(r.l2);
  return r;
}

void ExpectClose(const tt_stats& got, const std::vector<double>& values) {
  const Reference r = Refer(values);
  EXPECT_EQ(got.count, values.size());
  EXPECT_EQ(got.nan_count, r.nan);
  EXPECT_EQ(got.inf_count, r.inf);
  EXPECT_EQ(got.zero_count, r.zero);
  if (r.finite == 0) {
    EXPECT_TRUE(std::isnan(got.min) && std::isnan(got.max) && std::isnan(got.mean) &&
                std::isnan(got.std) && std::isnan(got.l1) && std::isnan(got.l2));
    return;
  }
  EXPECT_EQ(got.min, static_cast<double>(r.min));
  EXPECT_EQ(got.max, static_cast<double>(r.max));
  const auto near = [](double value, long double expected, long double tolerance) {
    return std::fabs(value - expected) <= tolerance;
  };
  const long double magnitude = r.l1 / r.finite;
  EXPECT_TRUE(near(got.mean, r.mean, 1e-6L * magnitude)) << got.mean << " " << double(r.mean);
  EXPECT_TRUE(near(got.std, r.std, 1e-5L * r.std)) << got.std << " " << double(r.std);
  EXPECT_TRUE(near(got.l1, r.l1, 1e-5L * r.l1)) << got.l1 << " " << double(r.l1);
  EXPECT_TRUE(near(got.l2, r.l2, 1e-5L * r.l2)) << got.l2 << " " << double(r.l2);
}

template <class T>
std::vector<double> Widened(const std::vector<T>& values) {
  return std::vector<double>(values.begin(), values.end());
}

class StatsKernels : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    kernels_ = GetParam() == "avx512" ? KernelsAvx512()
               : GetParam() == "avx2" ? KernelsAvx2()
                                      : KernelsPortable();
    if (kernels_.block_f32 == nullptr) GTEST_SKIP() << "not on this machine";
  }
  void CheckF32(const std::vector<float>& values) {
    tt_stats out;
    ASSERT_EQ(ComputeStats(values.data(), values.size(), TT_DTYPE_F32, kernels_, &out), 0);
    ExpectClose(out, Widened(values));
  }
  template <class T>
  void Check(const std::vector<T>& values, tt_dtype dtype) {
    tt_stats out;
    ASSERT_EQ(ComputeStats(values.data(), values.size(), dtype, kernels_, &out), 0);
    ExpectClose(out, Widened(values));
  }
  std::vector<float> Normal(std::size_t n, double mean, double std) {
    std::normal_distribution<double> distribution(mean, std);
    std::vector<float> out(n);
    for (float& x : out) x = static_cast<float>(distribution(random_));
    return out;
  }

  Kernels kernels_;
  std::mt19937_64 random_{7};
};

TEST_P(StatsKernels, EveryLengthAroundTheVectorAndTheBlock) {
  for (const std::size_t n : {0,  1,  2,   7,    8,    9,    15,   16,   17,   31,   63,
                              64, 65, 511, 1023, 1024, 1025, 2047, 2048, 2049, 4100, 10007}) {
    SCOPED_TRACE(n);
    CheckF32(Normal(n, 0.1, 1));
  }
}

TEST_P(StatsKernels, MeansThatDwarfTheDeviation) {
  CheckF32(Normal(50'000, 1000, 1));
  CheckF32(Normal(50'000, -3e6, 4));
  CheckF32(Normal(50'000, 1e-4, 1e-9));
  CheckF32(std::vector<float>(10'000, 0.1f));
  CheckF32(std::vector<float>(10'000, 0.0f));
}

TEST_P(StatsKernels, DriftingAndSortedData) {
  std::vector<float> ramp(100'000);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i) * 0.37f - 9000;
  CheckF32(ramp);
  std::vector<float> jumps(100'000);
  for (std::size_t i = 0; i < jumps.size(); ++i) {
    jumps[i] = (i / 3000 % 2 == 0 ? 1e6f : -1e-6f) + static_cast<float>(i % 7);
  }
  CheckF32(jumps);
}

TEST_P(StatsKernels, NotFiniteElementsAreCountedAndLeftOut) {
  std::vector<float> values = Normal(9000, 2, 3);
  values[0] = kNan;
  values[17] = kInf;
  values[2048] = -kInf;
  values[8999] = kNan;
  values[5] = 0;
  values[6] = -0.0f;
  CheckF32(values);
  CheckF32(std::vector<float>(3000, kNan));
  CheckF32(std::vector<float>(3000, -kInf));
  CheckF32({kNan});
  CheckF32({kInf, 3.0f, -kInf});
}

TEST_P(StatsKernels, TheEndsOfTheRange) {
  CheckF32(Normal(5000, 0, 1e30));
  CheckF32(Normal(5000, 0, 1e-25));
  CheckF32({std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 1});
  std::vector<float> denormal(4000);
  for (std::size_t i = 0; i < denormal.size(); ++i) {
    denormal[i] = static_cast<float>(i) * std::numeric_limits<float>::denorm_min();
  }
  CheckF32(denormal);
  std::vector<float> mixed = Normal(5000, 0, 1e-22);
  mixed[100] = 1e-3f;
  CheckF32(mixed);
}

TEST_P(StatsKernels, AnyAddress) {
  std::vector<unsigned char> bytes(4 * 5000 + 8);
  // Not a multiple of any vector: the rest is read one by one.
  const std::vector<float> values = Normal(4999, 1, 1);
  for (const std::size_t offset : {1, 2, 3, 4, 8}) {
    std::memcpy(bytes.data() + offset, values.data(), values.size() * 4);
    tt_stats out;
    ASSERT_EQ(ComputeStats(bytes.data() + offset, values.size(), TT_DTYPE_F32, kernels_, &out), 0);
    ExpectClose(out, Widened(values));
  }
}

TEST_P(StatsKernels, Integers) {
  const auto fill = [&](auto zero, std::int64_t low, std::int64_t high) {
    std::uniform_int_distribution<std::int64_t> distribution(low, high);
    std::vector<decltype(zero)> out(7001);
    for (auto& x : out) x = static_cast<decltype(zero)>(distribution(random_));
    return out;
  };
  Check(fill(std::int8_t{}, -128, 127), TT_DTYPE_I8);
  Check(fill(std::uint8_t{}, 0, 255), TT_DTYPE_U8);
  Check(fill(std::uint8_t{}, 0, 1), TT_DTYPE_BOOL);
  Check(fill(std::int16_t{}, -32768, 32767), TT_DTYPE_I16);
  Check(fill(std::int32_t{}, -2'000'000'000, 2'000'000'000), TT_DTYPE_I32);
  Check(fill(std::int64_t{}, -(1LL << 50), 1LL << 50), TT_DTYPE_I64);
}

TEST_P(StatsKernels, Float64) {
  std::normal_distribution<double> distribution(1e5, 1e-3);
  std::vector<double> values(9000);
  for (double& x : values) x = distribution(random_);
  values[3] = std::numeric_limits<double>::quiet_NaN();
  values[4000] = std::numeric_limits<double>::infinity();
  values[4001] = 0;
  Check(values, TT_DTYPE_F64);
}

TEST_P(StatsKernels, EqualValuesDeviateByNothing) {
  const std::vector<double> values(10'000, 0.1);
  tt_stats stats;
  ASSERT_EQ(ComputeStats(values.data(), values.size(), TT_DTYPE_F64, kernels_, &stats), 0);
  EXPECT_EQ(stats.mean, 0.1);
  EXPECT_EQ(stats.std, 0);
}

TEST_P(StatsKernels, Bfloat16) {
  const std::vector<float> source = Normal(5003, 0, 2);
  std::vector<std::uint16_t> bits;
  std::vector<double> values;
  for (float x : source) {
    std::uint32_t word;
    std::memcpy(&word, &x, 4);
    bits.push_back(static_cast<std::uint16_t>(word >> 16));
    word &= 0xFFFF0000U;
    std::memcpy(&x, &word, 4);
    values.push_back(static_cast<double>(x));
  }
  bits[7] = 0x7FC0;
  values[7] = static_cast<double>(kNan);
  bits[8] = 0xFF80;
  values[8] = static_cast<double>(-kInf);
  tt_stats out;
  ASSERT_EQ(ComputeStats(bits.data(), bits.size(), TT_DTYPE_BF16, kernels_, &out), 0);
  ExpectClose(out, values);
}

TEST_P(StatsKernels, EveryFloat16) {
  std::vector<std::uint16_t> bits;
  std::vector<double> values;
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    bits.push_back(static_cast<std::uint16_t>(b));
    const std::uint32_t exponent = b >> 10 & 31, fraction = b & 1023;
    double x = exponent == 31
                   ? (fraction != 0 ? static_cast<double>(kNan) : static_cast<double>(kInf))
               : exponent == 0 ? std::ldexp(fraction, -24)
                               : std::ldexp(fraction + 1024, static_cast<int>(exponent) - 25);
    values.push_back((b & 0x8000) != 0 ? -x : x);
  }
  tt_stats out;
  ASSERT_EQ(ComputeStats(bits.data(), bits.size(), TT_DTYPE_F16, kernels_, &out), 0);
  ExpectClose(out, values);
}

INSTANTIATE_TEST_SUITE_P(All, StatsKernels, testing::Values("portable", "avx2", "avx512"),
                         [](const auto& instance) { return instance.param; });

TEST(Stats, TheCallersFloatEnvironmentIsNeitherUsedNorChanged) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr((before | 0x8040) & ~0x80U);  // Denormals are zero, and NaN traps.
  const unsigned set = _mm_getcsr();
  const float values[3] = {1e-42f, kNan, 0};
  tt_stats out;
  const int result = tt_compute_stats(values, 3, TT_DTYPE_F32, &out);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(out.zero_count, 1u);
  EXPECT_EQ(out.nan_count, 1u);
  EXPECT_GT(out.max, 0);
  EXPECT_EQ(after, set);
#endif
}

TEST(Stats, AnUnknownDtypeIsRefused) {
  tt_stats out;
  EXPECT_EQ(tt_compute_stats("", 0, static_cast<tt_dtype>(77), &out), -1);
}

TEST(Stats, NoMemoryIsRefusedUnlessThereIsNothingToRead) {
  tt_stats out;
  EXPECT_EQ(tt_compute_stats(nullptr, 8, TT_DTYPE_F32, &out), -1);
  EXPECT_EQ(tt_compute_stats(nullptr, 0, TT_DTYPE_F32, &out), 0);
}

}  // namespace
}  // namespace telltale::probe
