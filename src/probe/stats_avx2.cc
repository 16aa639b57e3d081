// SPDX-License-Identifier: Apache-2.0
// AVX2, FMA and F16C, allowed function by function: nothing of this file runs on a machine without
// them.
#include "probe/stats.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <atomic>
#include <cstring>
#include <limits>

#define TELLTALE_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace telltale::probe {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kSubBlock = kLanes * kUnroll * kChain;

TELLTALE_AVX2 inline __m256d Fold(const __m256* v) {
  const __m256 four = _mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3]));
  return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(four)),
                       _mm256_cvtps_pd(_mm256_extractf128_ps(four, 1)));
}

TELLTALE_AVX2 inline double Sum(__m256d v) {
  alignas(32) double lanes[4];
  _mm256_store_pd(lanes, v);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/// REQUIRES: count is a multiple of kLanes.
TELLTALE_AVX2 void SumsOfWhole(const float* data, std::size_t count, float shift,
                               ShiftedSums* out) {
  const __m256 k = _mm256_set1_ps(shift);
  const __m256 zero = _mm256_setzero_ps();
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  constexpr float kInf = std::numeric_limits<float>::infinity();
  __m256 low = _mm256_set1_ps(kInf), high = _mm256_set1_ps(-kInf);
  __m256i zeros = _mm256_setzero_si256();
  __m256d deviations = _mm256_setzero_pd();
  __m256d squares = _mm256_setzero_pd();
  __m256d l1 = _mm256_setzero_pd();
  std::size_t at = 0;
  while (at < count) {
    __m256 d[kUnroll], s[kUnroll], a[kUnroll];
    for (std::size_t u = 0; u < kUnroll; ++u) d[u] = s[u] = a[u] = zero;
    const std::size_t end = count - at < kSubBlock ? count : at + kSubBlock;
    const auto add = [&](const float* p, std::size_t u) TELLTALE_AVX2 {
      const __m256 x = _mm256_loadu_ps(p);
      const __m256 e = _mm256_sub_ps(x, k);
      d[u] = _mm256_add_ps(d[u], e);
      s[u] = _mm256_fmadd_ps(e, e, s[u]);
      a[u] = _mm256_add_ps(a[u], _mm256_and_ps(x, magnitude));
      low = _mm256_min_ps(low, x);
      high = _mm256_max_ps(high, x);
      zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(_mm256_cmp_ps(x, zero, _CMP_EQ_OQ)));
    };
    for (; at + kLanes * kUnroll <= end; at += kLanes * kUnroll) {
      _mm_prefetch(reinterpret_cast<const char*>(data + at) + kAhead, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(data + at) + kAhead + 64, _MM_HINT_T0);
#pragma GCC unroll 4
      for (std::size_t u = 0; u < kUnroll; ++u) add(data + at + u * kLanes, u);
    }
    for (; at < end; at += kLanes) add(data + at, 0);
    deviations = _mm256_add_pd(deviations, Fold(d));
    squares = _mm256_add_pd(squares, Fold(s));
    l1 = _mm256_add_pd(l1, Fold(a));
  }
  out->deviations = Sum(deviations);
  out->squares = Sum(squares);
  out->l1 = Sum(l1);
  alignas(32) float lows[kLanes], highs[kLanes];
  alignas(32) std::uint32_t counts[kLanes];
  _mm256_store_ps(lows, low);
  _mm256_store_ps(highs, high);
  _mm256_store_si256(reinterpret_cast<__m256i*>(counts), zeros);
  float smallest = kInf, largest = -kInf;
  out->zeros = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    smallest = lows[i] < smallest ? lows[i] : smallest;
    largest = highs[i] > largest ? highs[i] : largest;
    out->zeros += counts[i];
  }
  out->min = static_cast<double>(smallest);
  out->max = static_cast<double>(largest);
}

void AddScalar(float x, float shift, ShiftedSums* sums) {
  const double value = static_cast<double>(x);
  const double e = value - static_cast<double>(shift);
  sums->deviations += e;
  sums->squares += e * e;
  sums->l1 += value < 0 ? -value : value;
  sums->min = value < sums->min ? value : sums->min;
  sums->max = value > sums->max ? value : sums->max;
  sums->zeros += x == 0 ? 1 : 0;
}

void Sums(const float* data, std::size_t count, float shift, ShiftedSums* out) {
  const std::size_t whole = count / kLanes * kLanes;
  SumsOfWhole(data, whole, shift, out);
  for (std::size_t i = whole; i < count; ++i) {
    float x;  // At any address, as the whole vectors are.
    std::memcpy(&x, data + i, sizeof x);
    AddScalar(x, shift, out);
  }
}

void BlockExact(const float* data, std::size_t count, BlockStats* out) {
  KernelsPortable().block_f32(data, count, 0, out);
}

TELLTALE_AVX2 void WidenHalf(const void* data, std::size_t count, float* out) {
  const auto* half = static_cast<const std::uint16_t*>(data);
  std::size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    _mm256_storeu_ps(out + at,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + at))));
  }
  if (at < count) KernelsPortable().widen_f16(half + at, count - at, out + at);
}

TELLTALE_AVX2 void WidenBfloat(const void* data, std::size_t count, float* out) {
  const auto* bits = static_cast<const std::uint16_t*>(data);
  std::size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + at)));
    _mm256_storeu_ps(out + at, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
  }
  if (at < count) KernelsPortable().widen_bf16(bits + at, count - at, out + at);
}

TELLTALE_AVX2 void MagnitudesOf(const float* data, std::size_t count, Magnitudes* out) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i low[2] = {mask, mask};
  __m256i signs = _mm256_setzero_si256();
  // A block adds at most 256 times 0x7FFFFF to a lane.
  __m256i logs[2] = {signs, signs};
  std::size_t at = 0;
  for (; at + 2 * kLanes <= count; at += 2 * kLanes) {
#pragma GCC unroll 2
    for (std::size_t u = 0; u < 2; ++u) {
      const __m256i bits =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at + u * kLanes));
      const __m256i magnitude = _mm256_and_si256(bits, mask);
      low[u] = _mm256_min_epu32(low[u], magnitude);
      signs = _mm256_xor_si256(signs, bits);
      logs[u] = _mm256_add_epi32(logs[u], _mm256_srli_epi32(magnitude, 8));
    }
  }
  alignas(32) std::uint32_t lows[kLanes], all_signs[kLanes], first[kLanes], second[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lows), _mm256_min_epu32(low[0], low[1]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(all_signs), signs);
  _mm256_store_si256(reinterpret_cast<__m256i*>(first), logs[0]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(second), logs[1]);
  for (std::size_t i = 0; i < kLanes; ++i) {
    out->smallest = lows[i] < out->smallest ? lows[i] : out->smallest;
    out->signs ^= all_signs[i];
    out->logs += std::uint64_t{first[i]} + second[i];
  }
  if (at < count) KernelsPortable().magnitudes_f32(data + at, count - at, out);
}

/// F16C by CPUID: clang has no name for it.
bool CanRun() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

Kernels KernelsAvx2() {
  // 0: not asked yet, 1: no, 2: yes. Asked once: this is called for each tensor, and a hypervisor
  // takes microseconds to answer a CPUID.
  static std::atomic<int> known{0};
  int can = known.load(std::memory_order_relaxed);
  if (can == 0) {
    can = CanRun() ? 2 : 1;
    known.store(can, std::memory_order_relaxed);
  }
  return can == 2 ? Kernels{BlockAbout<Sums, BlockExact>, WidenHalf, WidenBfloat, MagnitudesOf}
                  : Kernels{nullptr, nullptr, nullptr, nullptr};
}

}  // namespace telltale::probe
#else
namespace telltale::probe {
Kernels KernelsAvx2() { return {nullptr, nullptr, nullptr, nullptr}; }
}  // namespace telltale::probe
#endif
