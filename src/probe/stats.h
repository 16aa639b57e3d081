// SPDX-License-Identifier: Apache-2.0
// Statistics kernels: one pass over memory for min, max, mean, std, L1, L2, NaN, Inf and zeros.
//
// Memory is read once, in blocks that fit the L1 cache; within a block the sum of squares is taken
// about the block's own mean, and blocks are merged in double (Chan, Golub, LeVeque 1979), so a
// large mean or a long tensor costs no precision. Thread-safe; nothing is allocated.
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
  double sum, l1;   ///< Over the finite elements.
  double m2;        ///< Sum of squares about the finite elements' mean.
};

/// Merges blocks into a result.
class StatsMerger {
 public:
  void Add(const BlockStats& block, std::uint64_t count);
  void Finish(tt_stats* out) const;

 private:
  std::uint64_t count_ = 0, finite_ = 0, nan_ = 0, inf_ = 0, zero_ = 0;
  double min_ = 0, max_ = 0, mean_ = 0, m2_ = 0, l1_ = 0, squares_ = 0;
};

/// float32 kernels; null where this machine cannot run them.
using BlockKernelF32 = void (*)(const float* data, std::size_t count, BlockStats* out);
BlockKernelF32 BlockKernelF32Avx2();
BlockKernelF32 BlockKernelF32Avx512();
/// The portable one, in double throughout: also what the fast ones fall back to for blocks whose
/// squares would leave the range of float32.
void BlockF32Portable(const float* data, std::size_t count, BlockStats* out);

/// As tt_compute_stats, with a float32 kernel of the caller's choice (null: portable).
int ComputeStats(const void* data, std::uint64_t count, tt_dtype dtype, BlockKernelF32 kernel,
                 tt_stats* out);
/// The fastest float32 kernel of this machine.
BlockKernelF32 BestKernelF32();

}  // namespace telltale::probe
