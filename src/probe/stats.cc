// SPDX-License-Identifier: Apache-2.0
#include "probe/stats.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "probe/array_view.h"
#include "probe/elements.h"
#include "probe/float_environment.h"

namespace telltale::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Two passes over a block that is in the cache after the first.
template <class T>
void BlockPortable(const unsigned char* data, std::size_t count, BlockStats* out) {
  *out = {};
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  double sum = 0, l1 = 0;
  std::size_t finite = 0;
  const auto at = [&](std::size_t i) { return ToDouble(Load<T>(data, i)); };
  for (std::size_t i = 0; i < count; ++i) {
    const double x = at(i);
    if (!(std::fabs(x) <= std::numeric_limits<double>::max())) {
      ++(x != x ? out->nan_count : out->inf_count);
      continue;
    }
    ++finite;
    out->zero_count += x == 0 ? 1 : 0;
    low = x < low ? x : low;
    high = x > high ? x : high;
    sum += x;
    l1 += std::fabs(x);
  }
  // Of equal values, to the bit: the rounding of their sum is no deviation.
  double m2 = 0, mean = finite > 0 ? low : 0;
  if (low < high) {
    mean = sum / static_cast<double>(finite);
    for (std::size_t i = 0; i < count; ++i) {
      const double x = at(i);
      const double d = x - mean;
      if (std::fabs(x) <= std::numeric_limits<double>::max()) m2 += d * d;
    }
  }
  out->min = low;
  out->max = high;
  out->mean = mean;
  out->l1 = l1;
  out->m2 = m2;
}

void BlockF32Portable(const float* data, std::size_t count, float /*shift*/, BlockStats* out) {
  BlockPortable<float>(reinterpret_cast<const unsigned char*>(data), count, out);
}

void WidenF16Portable(const void* data, std::size_t count, float* out) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(ToDouble(Load<Half>(bytes, i)));
  }
}

/// Types that float32 cannot hold: in double.
template <class T>
void RunWide(const unsigned char* data, std::uint64_t count, StatsMerger* merger) {
  for (std::uint64_t at = 0; at < count; at += kBlock) {
    const std::uint64_t n = count - at < kBlock ? count - at : kBlock;
    BlockStats block;
    BlockPortable<T>(data + at * sizeof(T), n, &block);
    merger->Add(block, n);
  }
}

/// One block that float32 holds; its magnitudes while it is in the cache.
void AddBlockF32(const float* data, std::uint64_t n, const Kernels& kernels, StatsMerger* merger,
                 Magnitudes* magnitudes) {
  BlockStats block;
  kernels.block_f32(data, n, static_cast<float>(merger->mean()), &block);
  merger->Add(block, n);
  if (magnitudes != nullptr) kernels.magnitudes_f32(data, n, magnitudes);
}

void RunF32(const float* data, std::uint64_t count, const Kernels& kernels, StatsMerger* merger,
            Magnitudes* magnitudes) {
  for (std::uint64_t at = 0; at < count; at += kBlock) {
    const std::uint64_t n = count - at < kBlock ? count - at : kBlock;
    AddBlockF32(data + at, n, kernels, merger, magnitudes);
  }
}

/// Types that float32 holds exactly: widened block by block, in the L1 cache.
template <class Widen>
void RunNarrow(std::size_t element_bytes, const unsigned char* data, std::uint64_t count,
               const Kernels& kernels, StatsMerger* merger, Magnitudes* magnitudes, Widen widen) {
  alignas(64) float buffer[kBlock];
  for (std::uint64_t at = 0; at < count; at += kBlock) {
    const std::uint64_t n = count - at < kBlock ? count - at : kBlock;
    widen(data + at * element_bytes, n, buffer);
    AddBlockF32(buffer, n, kernels, merger, magnitudes);
  }
}

template <class T>
void WidenSimple(const unsigned char* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = ToFloat(Load<T>(data, i));
}

void MagnitudesPortable(const float* data, std::size_t count, Magnitudes* out) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, data + i, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7FFFFFFF;
    out->smallest = magnitude < out->smallest ? magnitude : out->smallest;
    out->signs ^= bits;
    out->logs += magnitude >> 8;
  }
}

void WidenBf16Portable(const void* data, std::size_t count, float* out) {
  WidenSimple<Bfloat>(static_cast<const unsigned char*>(data), count, out);
}

}  // namespace

Kernels KernelsPortable() {
  return {BlockF32Portable, WidenF16Portable, WidenBf16Portable, MagnitudesPortable};
}

Verdict Judge(const ShiftedSums& sums, std::size_t count, double shift, BlockStats* out) {
  constexpr double kLargest = 1e18;          // Its square is far below the largest float32.
  constexpr double kSmallestSquare = 1e-32;  // Far above the smallest normal one.
  if (!(sums.l1 < kLargest) || !(std::fabs(shift) < kLargest)) return Verdict::kExact;
  const auto n = static_cast<double>(count);
  out->nan_count = out->inf_count = 0;
  out->zero_count = sums.zeros;
  out->min = sums.min;
  out->max = sums.max;
  out->l1 = sums.l1;
  if (sums.min == sums.max) {
    out->mean = sums.min;
    out->m2 = 0;
    return Verdict::kGood;
  }
  const double offset = sums.deviations / n;
  out->mean = shift + offset;
  out->m2 = sums.squares - offset * offset * n;
  if (sums.squares < kSmallestSquare * n) return Verdict::kExact;
  // What is subtracted must not be much more than what remains.
  return offset * offset * n > 8 * out->m2 ? Verdict::kShiftAgain : Verdict::kGood;
}

void StatsMerger::Add(const BlockStats& block, std::uint64_t count) {
  count_ += count;
  nan_ += block.nan_count;
  inf_ += block.inf_count;
  zero_ += block.zero_count;
  const std::uint64_t finite = count - block.nan_count - block.inf_count;
  if (finite == 0) return;
  const auto n = static_cast<double>(finite);
  const double mean = block.mean;
  if (finite_ == 0) {
    min_ = block.min;
    max_ = block.max;
    mean_ = mean;
    m2_ = block.m2;
  } else {
    min_ = block.min < min_ ? block.min : min_;
    max_ = block.max > max_ ? block.max : max_;
    const auto before = static_cast<double>(finite_);
    const double delta = mean - mean_;
    mean_ += delta * (n / (before + n));
    m2_ += block.m2 + delta * delta * (before * n / (before + n));
  }
  finite_ += finite;
  l1_ += block.l1;
  squares_ += block.m2 + n * mean * mean;
}

void StatsMerger::Finish(tt_stats* out) const {
  *out = {count_, nan_, inf_, zero_, kNan, kNan, kNan, kNan, kNan, kNan};
  if (finite_ == 0) return;
  out->min = min_;
  out->max = max_;
  out->mean = mean_;
  out->std = std::sqrt(m2_ / static_cast<double>(finite_));
  out->l1 = l1_;
  out->l2 = std::sqrt(squares_);
}

Kernels BestKernels() {
  // 0: not known yet, 1: portable, 2: AVX2, 3: AVX-512.
  static std::atomic<int> best{0};
  int known = best.load(std::memory_order_relaxed);
  if (known == 0) {
    known = KernelsAvx512().block_f32 != nullptr ? 3 : KernelsAvx2().block_f32 != nullptr ? 2 : 1;
    best.store(known, std::memory_order_relaxed);
  }
  return known == 3 ? KernelsAvx512() : known == 2 ? KernelsAvx2() : KernelsPortable();
}

int AddElements(const void* data, std::uint64_t count, tt_dtype dtype, const Kernels& kernels,
                StatsMerger* merger, Magnitudes* magnitudes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (magnitudes != nullptr) magnitudes->known = FitsFloat(dtype);
  switch (dtype) {
    case TT_DTYPE_F32:
      RunF32(static_cast<const float*>(data), count, kernels, merger, magnitudes);
      return 0;
    case TT_DTYPE_F16:
      RunNarrow(2, bytes, count, kernels, merger, magnitudes, kernels.widen_f16);
      return 0;
    case TT_DTYPE_BF16:
      RunNarrow(2, bytes, count, kernels, merger, magnitudes, kernels.widen_bf16);
      return 0;
    case TT_DTYPE_F8E4M3:
      RunNarrow(1, bytes, count, kernels, merger, magnitudes, WidenSimple<Float8E4M3>);
      return 0;
    case TT_DTYPE_F8E5M2:
      RunNarrow(1, bytes, count, kernels, merger, magnitudes, WidenSimple<Float8E5M2>);
      return 0;
    case TT_DTYPE_I16:
      RunNarrow(2, bytes, count, kernels, merger, magnitudes, WidenSimple<std::int16_t>);
      return 0;
    case TT_DTYPE_U16:
      RunNarrow(2, bytes, count, kernels, merger, magnitudes, WidenSimple<std::uint16_t>);
      return 0;
    case TT_DTYPE_I8:
      RunNarrow(1, bytes, count, kernels, merger, magnitudes, WidenSimple<std::int8_t>);
      return 0;
    case TT_DTYPE_U8:
    case TT_DTYPE_BOOL:
      RunNarrow(1, bytes, count, kernels, merger, magnitudes, WidenSimple<std::uint8_t>);
      return 0;
    case TT_DTYPE_F64:
      RunWide<double>(bytes, count, merger);
      return 0;
    case TT_DTYPE_I64:
      RunWide<std::int64_t>(bytes, count, merger);
      return 0;
    case TT_DTYPE_I32:
      RunWide<std::int32_t>(bytes, count, merger);
      return 0;
    case TT_DTYPE_U32:
      RunWide<std::uint32_t>(bytes, count, merger);
      return 0;
    case TT_DTYPE_U64:
      RunWide<std::uint64_t>(bytes, count, merger);
      return 0;
    case TT_DTYPE_C64:
      RunWide<Complex<float>>(bytes, count, merger);
      return 0;
    case TT_DTYPE_C128:
      RunWide<Complex<double>>(bytes, count, merger);
      return 0;
  }
  return -1;
}

int ComputeStats(const void* data, std::uint64_t count, tt_dtype dtype, const Kernels& kernels,
                 tt_stats* out) {
  const DefaultFloatEnvironment environment;
  StatsMerger merger;
  if (AddElements(data, count, dtype, kernels, &merger, nullptr) != 0) return -1;
  merger.Finish(out);
  return 0;
}

void ComputeViewStats(const ArrayView& view, const Kernels& kernels, tt_stats* out,
                      Magnitudes* magnitudes) {
  const DefaultFloatEnvironment environment;
  StatsMerger merger;
  if (view.contiguous()) {
    AddElements(view.data, view.walk(), view.dtype, kernels, &merger, magnitudes);
  } else {
    ForEachBlock(view, [&](const void* data, std::uint64_t n) {
      AddElements(data, n, view.dtype, kernels, &merger, magnitudes);
    });
  }
  merger.Finish(out);
  out->count *= view.repeats;
  out->nan_count *= view.repeats;
  out->inf_count *= view.repeats;
  out->zero_count *= view.repeats;
  out->l1 *= static_cast<double>(view.repeats);
  out->l2 *= std::sqrt(static_cast<double>(view.repeats));
}

}  // namespace telltale::probe
