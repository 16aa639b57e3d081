// SPDX-License-Identifier: Apache-2.0
#include "probe/stats.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace telltale::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The kernels run with the default floating-point environment: a training that flushes denormals
/// or traps on NaN must neither change our counts nor be trapped by them; its sticky flags stay.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

double ToDouble(Half h) {
  const unsigned exponent = (h.bits >> 10) & 31;
  const unsigned fraction = h.bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction != 0 ? kNan : std::numeric_limits<double>::infinity();
  } else {
    value = exponent == 0 ? fraction * 0x1p-24
                          : (fraction + 1024) * 0x1p-25 * static_cast<double>(1U << exponent);
  }
  return (h.bits & 0x8000) != 0 ? -value : value;
}
double ToDouble(Bfloat b) {
  const std::uint32_t bits = std::uint32_t{b.bits} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
double ToDouble(T value) {
  return static_cast<double>(value);
}

/// Two passes over a block that is in the cache after the first.
template <class T>
void BlockPortable(const unsigned char* data, std::size_t count, BlockStats* out) {
  *out = {};
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  double sum = 0, l1 = 0;
  std::size_t finite = 0;
  const auto at = [&](std::size_t i) {
    T value;  // Tensors may lie at any address.
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    return ToDouble(value);
  };
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
  double m2 = 0;
  if (finite > 0) {
    const double mean = sum / static_cast<double>(finite);
    for (std::size_t i = 0; i < count; ++i) {
      const double x = at(i);
      const double d = x - mean;
      if (std::fabs(x) <= std::numeric_limits<double>::max()) m2 += d * d;
    }
  }
  out->min = low;
  out->max = high;
  out->sum = sum;
  out->l1 = l1;
  out->m2 = m2;
}

template <class T>
void Run(const unsigned char* data, std::uint64_t count, StatsMerger* merger) {
  for (std::uint64_t at = 0; at < count; at += kBlock) {
    const std::uint64_t n = count - at < kBlock ? count - at : kBlock;
    BlockStats block;
    BlockPortable<T>(data + at * sizeof(T), n, &block);
    merger->Add(block, n);
  }
}

void RunF32(const float* data, std::uint64_t count, BlockKernelF32 kernel, StatsMerger* merger) {
  for (std::uint64_t at = 0; at < count; at += kBlock) {
    const std::uint64_t n = count - at < kBlock ? count - at : kBlock;
    BlockStats block;
    kernel(data + at, n, &block);
    merger->Add(block, n);
  }
}

}  // namespace

void BlockF32Portable(const float* data, std::size_t count, BlockStats* out) {
  BlockPortable<float>(reinterpret_cast<const unsigned char*>(data), count, out);
}

void StatsMerger::Add(const BlockStats& block, std::uint64_t count) {
  count_ += count;
  nan_ += block.nan_count;
  inf_ += block.inf_count;
  zero_ += block.zero_count;
  const std::uint64_t finite = count - block.nan_count - block.inf_count;
  if (finite == 0) return;
  const auto n = static_cast<double>(finite);
  const double mean = block.sum / n;
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

BlockKernelF32 BestKernelF32() {
  static std::atomic<BlockKernelF32> best{nullptr};
  BlockKernelF32 kernel = best.load(std::memory_order_relaxed);
  if (kernel == nullptr) {
    kernel = BlockKernelF32Avx512();
    if (kernel == nullptr) kernel = BlockKernelF32Avx2();
    if (kernel == nullptr) kernel = BlockF32Portable;
    best.store(kernel, std::memory_order_relaxed);
  }
  return kernel;
}

int ComputeStats(const void* data, std::uint64_t count, tt_dtype dtype, BlockKernelF32 kernel,
                 tt_stats* out) {
  const DefaultFloatEnvironment environment;
  const auto* bytes = static_cast<const unsigned char*>(data);
  StatsMerger merger;
  switch (dtype) {
    case TT_DTYPE_F32:
      RunF32(static_cast<const float*>(data), count, kernel == nullptr ? BlockF32Portable : kernel,
             &merger);
      break;
    case TT_DTYPE_F64:
      Run<double>(bytes, count, &merger);
      break;
    case TT_DTYPE_F16:
      Run<Half>(bytes, count, &merger);
      break;
    case TT_DTYPE_BF16:
      Run<Bfloat>(bytes, count, &merger);
      break;
    case TT_DTYPE_I64:
      Run<std::int64_t>(bytes, count, &merger);
      break;
    case TT_DTYPE_I32:
      Run<std::int32_t>(bytes, count, &merger);
      break;
    case TT_DTYPE_I16:
      Run<std::int16_t>(bytes, count, &merger);
      break;
    case TT_DTYPE_I8:
      Run<std::int8_t>(bytes, count, &merger);
      break;
    case TT_DTYPE_U8:
    case TT_DTYPE_BOOL:
      Run<std::uint8_t>(bytes, count, &merger);
      break;
    default:
      return -1;
  }
  merger.Finish(out);
  return 0;
}

}  // namespace telltale::probe
