// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, DQ, BW, VL). Compiled with these instructions allowed function by function, so that
// nothing of this file runs on a machine without them.
#include "probe/stats.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>

#define TELLTALE_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,f16c")))

namespace telltale::probe {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kSubBlock = kLanes * kUnroll * kChain;

TELLTALE_AVX512 inline __m512d Widen(__m512 v) {
  return _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                       _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
}

TELLTALE_AVX512 inline __m512d Fold(const __m512* v) {
  return Widen(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
}

TELLTALE_AVX512 void Sums(const float* data, std::size_t count, float shift, ShiftedSums* out) {
  const __m512 k = _mm512_set1_ps(shift);
  const __m512 zero = _mm512_setzero_ps();
  const __m512i one = _mm512_set1_epi32(1);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  __m512 low[2] = {_mm512_set1_ps(kInf), _mm512_set1_ps(kInf)};
  __m512 high[2] = {_mm512_set1_ps(-kInf), _mm512_set1_ps(-kInf)};
  __m512i zeros[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  __m512d deviations = _mm512_setzero_pd();
  __m512d squares = _mm512_setzero_pd();
  __m512d l1 = _mm512_setzero_pd();
  std::size_t at = 0;
  while (at < count) {
    __m512 d[kUnroll], s[kUnroll], a[kUnroll];
    for (std::size_t u = 0; u < kUnroll; ++u) d[u] = s[u] = a[u] = zero;
    const std::size_t end = count - at < kSubBlock ? count : at + kSubBlock;
    for (; at + kLanes * kUnroll <= end; at += kLanes * kUnroll) {
#pragma GCC unroll 4
      for (std::size_t u = 0; u < kUnroll; ++u) {
        const float* p = data + at + u * kLanes;
        _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead, _MM_HINT_T0);
        const __m512 x = _mm512_loadu_ps(p);
        const __m512 e = _mm512_sub_ps(x, k);
        d[u] = _mm512_add_ps(d[u], e);
        s[u] = _mm512_fmadd_ps(e, e, s[u]);
        a[u] = _mm512_add_ps(a[u], _mm512_abs_ps(x));
        low[u & 1] = _mm512_min_ps(low[u & 1], x);
        high[u & 1] = _mm512_max_ps(high[u & 1], x);
        zeros[u & 1] = _mm512_mask_add_epi32(zeros[u & 1], _mm512_cmp_ps_mask(x, zero, _CMP_EQ_OQ),
                                             zeros[u & 1], one);
      }
    }
    for (; at < end; at += kLanes) {
      const std::size_t left = end - at;
      const auto lanes = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
      const __m512 x = _mm512_maskz_loadu_ps(lanes, data + at);
      const __m512 e = _mm512_maskz_sub_ps(lanes, x, k);
      d[0] = _mm512_add_ps(d[0], e);
      s[0] = _mm512_fmadd_ps(e, e, s[0]);
      a[0] = _mm512_add_ps(a[0], _mm512_abs_ps(x));
      low[0] = _mm512_mask_min_ps(low[0], lanes, low[0], x);
      high[0] = _mm512_mask_max_ps(high[0], lanes, high[0], x);
      zeros[0] = _mm512_mask_add_epi32(
          zeros[0], _mm512_mask_cmp_ps_mask(lanes, x, zero, _CMP_EQ_OQ), zeros[0], one);
    }
    deviations = _mm512_add_pd(deviations, Fold(d));
    squares = _mm512_add_pd(squares, Fold(s));
    l1 = _mm512_add_pd(l1, Fold(a));
    at = end;
  }
  out->deviations = _mm512_reduce_add_pd(deviations);
  out->squares = _mm512_reduce_add_pd(squares);
  out->l1 = _mm512_reduce_add_pd(l1);
  out->min = static_cast<double>(_mm512_reduce_min_ps(_mm512_min_ps(low[0], low[1])));
  out->max = static_cast<double>(_mm512_reduce_max_ps(_mm512_max_ps(high[0], high[1])));
  out->zeros =
      static_cast<std::uint64_t>(_mm512_reduce_add_epi32(_mm512_add_epi32(zeros[0], zeros[1])));
}

/// In double, non-finite elements masked out. Twice over the block, which is in the cache.
TELLTALE_AVX512 void BlockExact(const float* data, std::size_t count, BlockStats* out) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr int kNanClasses = 0x81;
  constexpr int kInfClasses = 0x18;
  __m512d low = _mm512_set1_pd(kInf), high = _mm512_set1_pd(-kInf);
  __m512d sum = _mm512_setzero_pd(), l1 = _mm512_setzero_pd(), m2 = _mm512_setzero_pd();
  *out = {};
  std::size_t finite = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const __m512d mean =
        _mm512_set1_pd(finite > 0 ? _mm512_reduce_add_pd(sum) / static_cast<double>(finite) : 0.0);
    for (std::size_t at = 0; at < count; at += 8) {
      const std::size_t left = count - at;
      const auto lanes = static_cast<__mmask8>(left >= 8 ? 0xFF : (1U << left) - 1);
      const __m256 x = _mm256_maskz_loadu_ps(lanes, data + at);
      const auto nan = static_cast<__mmask8>(_mm256_fpclass_ps_mask(x, kNanClasses));
      const auto inf = static_cast<__mmask8>(_mm256_fpclass_ps_mask(x, kInfClasses));
      const auto good = static_cast<__mmask8>(lanes & ~(nan | inf));
      const __m512d v = _mm512_maskz_cvtps_pd(good, x);
      if (pass == 1) {
        const __m512d e = _mm512_maskz_sub_pd(good, v, mean);
        m2 = _mm512_fmadd_pd(e, e, m2);
        continue;
      }
      out->nan_count += static_cast<unsigned>(__builtin_popcount(nan));
      out->inf_count += static_cast<unsigned>(__builtin_popcount(inf));
      out->zero_count += static_cast<unsigned>(
          __builtin_popcount(_mm512_mask_cmp_pd_mask(good, v, _mm512_setzero_pd(), _CMP_EQ_OQ)));
      finite += static_cast<unsigned>(__builtin_popcount(good));
      low = _mm512_mask_min_pd(low, good, low, v);
      high = _mm512_mask_max_pd(high, good, high, v);
      sum = _mm512_add_pd(sum, v);
      l1 = _mm512_add_pd(l1, _mm512_abs_pd(v));
    }
  }
  out->min = _mm512_reduce_min_pd(low);
  out->max = _mm512_reduce_max_pd(high);
  out->mean = finite > 0 ? _mm512_reduce_add_pd(sum) / static_cast<double>(finite) : 0.0;
  out->l1 = _mm512_reduce_add_pd(l1);
  out->m2 = _mm512_reduce_add_pd(m2);
}

TELLTALE_AVX512 void WidenHalf(const void* data, std::size_t count, float* out) {
  const auto* half = static_cast<const std::uint16_t*>(data);
  for (std::size_t at = 0; at < count; at += kLanes) {
    const std::size_t left = count - at;
    const auto lanes = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
    _mm512_mask_storeu_ps(out + at, lanes,
                          _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, half + at)));
  }
}

TELLTALE_AVX512 void WidenBfloat(const void* data, std::size_t count, float* out) {
  const auto* bits = static_cast<const std::uint16_t*>(data);
  for (std::size_t at = 0; at < count; at += kLanes) {
    const std::size_t left = count - at;
    const auto lanes = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, bits + at));
    _mm512_mask_storeu_ps(out + at, lanes, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
  }
}

TELLTALE_AVX512 void MagnitudesOf(const float* data, std::size_t count, Magnitudes* out) {
  const __m512i mask = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i low = mask;
  __m512i signs = _mm512_setzero_si512();
  // A block adds at most 128 times 0x7FFFFF to a lane.
  __m512i logs = signs;
  for (std::size_t at = 0; at < count; at += kLanes) {
    const std::size_t left = count - at;
    const auto lanes = static_cast<__mmask16>(left >= kLanes ? 0xFFFF : (1U << left) - 1);
    const __m512i bits = _mm512_maskz_loadu_epi32(lanes, data + at);
    const __m512i magnitude = _mm512_and_si512(bits, mask);
    low = _mm512_mask_min_epu32(low, lanes, low, magnitude);
    signs = _mm512_xor_si512(signs, bits);
    logs = _mm512_add_epi32(logs, _mm512_srli_epi32(magnitude, 8));
  }
  const std::uint32_t smallest = _mm512_reduce_min_epu32(low);
  out->smallest = smallest < out->smallest ? smallest : out->smallest;
  alignas(64) std::uint32_t all_signs[kLanes], sums[kLanes];
  _mm512_store_si512(all_signs, signs);
  _mm512_store_si512(sums, logs);
  for (std::size_t i = 0; i < kLanes; ++i) {
    out->signs ^= all_signs[i];
    out->logs += sums[i];
  }
}

}  // namespace

Kernels KernelsAvx512() {
  const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return can ? Kernels{BlockAbout<Sums, BlockExact>, WidenHalf, WidenBfloat, MagnitudesOf}
             : Kernels{nullptr, nullptr, nullptr, nullptr};
}

}  // namespace telltale::probe
#else
namespace telltale::probe {
Kernels KernelsAvx512() { return {nullptr, nullptr, nullptr, nullptr}; }
}  // namespace telltale::probe
#endif
