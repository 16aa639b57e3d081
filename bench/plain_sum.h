// SPDX-License-Identifier: Apache-2.0
// The physical limit that the statistics kernel is measured against: a sum of float32, as wide as
// the machine allows, with enough accumulators that only memory limits it.
#pragma once
#include <cstddef>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace telltale::bench {

#if defined(__x86_64__)
__attribute__((target("avx512f"))) inline float PlainSumAvx512(const float* data,
                                                               std::size_t count) {
  __m512 sums[8];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + 128 <= count; i += 128) {
#pragma GCC unroll 8
    for (std::size_t u = 0; u < 8; ++u) {
      sums[u] = _mm512_add_ps(sums[u], _mm512_loadu_ps(data + i + 16 * u));
    }
  }
  for (std::size_t u = 1; u < 8; ++u) sums[0] = _mm512_add_ps(sums[0], sums[u]);
  float sum = _mm512_reduce_add_ps(sums[0]);
  for (; i < count; ++i) sum += data[i];
  return sum;
}

__attribute__((target("avx2"))) inline float PlainSumAvx2(const float* data, std::size_t count) {
  __m256 sums[8];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
#pragma GCC unroll 8
    for (std::size_t u = 0; u < 8; ++u) {
      sums[u] = _mm256_add_ps(sums[u], _mm256_loadu_ps(data + i + 8 * u));
    }
  }
  alignas(32) float lanes[8];
  for (std::size_t u = 1; u < 8; ++u) sums[0] = _mm256_add_ps(sums[0], sums[u]);
  _mm256_store_ps(lanes, sums[0]);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < count; ++i) sum += data[i];
  return sum;
}
#endif

/// The faster of the two widths differs between machines; callers take the better time.
inline float PlainSum(const float* data, std::size_t count, bool wide) {
#if defined(__x86_64__)
  if (wide && __builtin_cpu_supports("avx512f")) return PlainSumAvx512(data, count);
  if (__builtin_cpu_supports("avx2")) return PlainSumAvx2(data, count);
#endif
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += data[i];
  return sum;
}

}  // namespace telltale::bench
