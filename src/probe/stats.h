// SPDX-License-Identifier: Apache-2.0
// Statistics kernels: one pass over memory for min, max, mean, std, L1, L2, NaN, Inf and zeros.
//
// Memory is read once, in blocks that stay in the L1 cache. A block's squares are summed about a
// value near its mean (the mean of the block before), and blocks are merged in double (Chan, Golub,
// LeVeque 1979), so neither a large mean nor a long tensor costs precision.
// Complex elements go in by their absolute value. Thread-safe; nothing is allocated.
#pragma once
#include <cstddef>
#include <cstdint>

#include "telltale/probe.h"

namespace telltale::probe {

/// Elements of one block: 8 KiB of float32.
inline constexpr std::size_t kBlock = 2048;

/// What a kernel says about one block.
struct BlockStats {
  std::uint64_t nan_count = 0, inf_count = 0, zero_count = 0;
  double min, max;  ///< Of the finite elements; undefined where there are none.
  double mean, l1;  ///< Over the finite elements.
  double m2;        ///< Sum of squares about `mean`.
};

/// What the bits of float32 elements say of their absolute values, for `more` statistics. Means
/// nothing where any is NaN or infinite.
struct Magnitudes {
  bool known = false;
  std::uint32_t smallest = 0x7F800000;  ///< Bits of the smallest absolute value.
  std::uint32_t signs = 0;              ///< All elements' bits, by exclusive or.
  std::uint64_t logs = 0;  ///< Sum of the bits without sign and the 8 lowest: see LogBounds.
};

/// Bounds of log2 of the absolute value of the product of normal elements. By the bits of a
/// float32, e + m of 2^e (1 + m): log2(1 + m) lies between m and m + 0.0861.
struct LogBounds {
  double low, high;
  LogBounds(const Magnitudes& magnitudes, std::uint64_t count)
      : low(static_cast<double>(magnitudes.logs) * 0x1p-15 - 127.0 * static_cast<double>(count)),
        high(low + (0.0861 + 0x1p-15) * static_cast<double>(count)) {}
};

/// Merges blocks into a result.
class StatsMerger {
 public:
  void Add(const BlockStats& block, std::uint64_t count);
  void Finish(tt_stats* out) const;
  double mean() const { return mean_; }

 private:
  std::uint64_t count_ = 0, finite_ = 0, nan_ = 0, inf_ = 0, zero_ = 0;
  double min_ = 0, max_ = 0, mean_ = 0, m2_ = 0, l1_ = 0, squares_ = 0;
};

/// Statistics of at most kBlock elements; `shift` is a guess of their mean.
using BlockKernelF32 = void (*)(const float* data, std::size_t count, float shift, BlockStats* out);
/// Widens at most kBlock values of 16 bits.
using Widen16 = void (*)(const void* data, std::size_t count, float* out);

/// Adds at most kBlock elements.
using MagnitudesF32 = void (*)(const float* data, std::size_t count, Magnitudes* out);

/// Code for one instruction set. The pointers are null where this machine cannot run it.
struct Kernels {
  BlockKernelF32 block_f32;
  Widen16 widen_f16;
  Widen16 widen_bf16;
  MagnitudesF32 magnitudes_f32;
};
Kernels KernelsAvx2();
Kernels KernelsAvx512();
/// In double throughout: also what the fast ones fall back to for blocks with NaN or Inf, or whose
/// squares would leave the range of float32.
Kernels KernelsPortable();
/// The fastest of this machine.
Kernels BestKernels();

/// The sums that a fast kernel takes over a block, in the lanes' order, widened.
struct ShiftedSums {
  double deviations;  ///< Σ(x - shift)
  double squares;     ///< Σ(x - shift)²
  double l1;          ///< Σ|x|: not finite where any x is not.
  double min, max;
  std::uint64_t zeros;
};
enum class Verdict {
  kGood,
  kShiftAgain,  ///< The shift was too far from the mean: again, about `out->mean`.
  kExact,       ///< Not finite, or out of the range where float32 squares are precise.
};
/// Whether the sums are precise enough, and the block's statistics from them.
Verdict Judge(const ShiftedSums& sums, std::size_t count, double shift, BlockStats* out);

// What the fast kernels share.
inline constexpr std::size_t kUnroll = 4;
/// Additions that one lane takes in float32 before it is widened: bounds the rounding error.
inline constexpr std::size_t kChain = 16;
/// Distance of the software prefetch; what follows the page is fetched before it is needed.
inline constexpr std::size_t kAhead = 4096;

/// A block by kSums about `shift`, then about the mean that this gave; by kExact where that is not
/// precise either.
template <auto kSums, auto kExact>
void BlockAbout(const float* data, std::size_t count, float shift, BlockStats* out) {
  for (int tries = 0; tries < 2; ++tries) {
    ShiftedSums sums;
    kSums(data, count, shift, &sums);
    const Verdict verdict = Judge(sums, count, static_cast<double>(shift), out);
    if (verdict == Verdict::kGood) return;
    if (verdict == Verdict::kExact) break;
    shift = static_cast<float>(out->mean);
  }
  kExact(data, count, out);
}

/// Adds elements to a result, and to the magnitudes, where not null; -1 for an unknown dtype.
/// REQUIRES: the default float environment.
int AddElements(const void* data, std::uint64_t count, tt_dtype dtype, const Kernels& kernels,
                StatsMerger* merger, Magnitudes* magnitudes);

/// As tt_compute_stats, with kernels of the caller's choice.
int ComputeStats(const void* data, std::uint64_t count, tt_dtype dtype, const Kernels& kernels,
                 tt_stats* out);

struct ArrayView;
/// Statistics of all elements of an array; of its magnitudes in the same pass, where float32 holds
/// them.
void ComputeViewStats(const ArrayView& view, const Kernels& kernels, tt_stats* out,
                      Magnitudes* magnitudes = nullptr);

}  // namespace telltale::probe
