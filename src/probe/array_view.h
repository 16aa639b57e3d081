// SPDX-License-Identifier: Apache-2.0
// An array of any strides as few loops over memory: dimensions are checked and merged, elements are
// copied out block by block. Allocates nothing.
#pragma once
#include <cstdint>

#include "probe/stats.h"
#include "telltale/probe.h"

namespace telltale::probe {

struct ArrayView {
  const unsigned char* data;  ///< Of the first element of the walk.
  tt_dtype dtype;
  std::uint32_t element_bytes;
  std::uint32_t ndim;
  std::int64_t shape[TT_MAX_DIMS];
  std::int64_t strides[TT_MAX_DIMS];  ///< In elements.
  std::uint64_t count;                ///< Elements of the array.
  std::uint64_t repeats;              ///< Each one of the walk stands for so many of the array.

  /// Elements of the walk.
  std::uint64_t walk() const { return count / repeats; }
  /// Whether the walk is a block of memory.
  bool contiguous() const { return ndim == 0 || (ndim == 1 && strides[0] == 1); }
};

/// A view whose walk is in C order. False where the array is not one: too many dimensions, a
/// negative size, an unknown dtype, no memory, more elements than 63 bits count.
bool MakeView(const tt_array& array, ArrayView* out);
/// Gives the order up, for what needs none: the walk goes through memory upwards, once over each
/// element that a stride of 0 repeats.
void ForgetOrder(ArrayView* view);
/// Copies elements first, first + 1, ... of the walk.
void CopyElements(const ArrayView& view, std::uint64_t first, std::uint64_t count, void* out);

/// Calls f(data, n) for blocks of at most kBlock elements that follow each other, in order.
template <class F>
void ForEachBlock(const ArrayView& view, F&& f) {
  alignas(64) unsigned char buffer[kBlock * 8];
  const std::uint64_t walk = view.walk();
  const std::uint64_t most = view.element_bytes > 8 ? kBlock / 2 : kBlock;
  for (std::uint64_t at = 0; at < walk; at += most) {
    const std::uint64_t n = walk - at < most ? walk - at : most;
    if (view.contiguous()) {
      f(static_cast<const void*>(view.data + at * view.element_bytes), n);
    } else {
      CopyElements(view, at, n, buffer);
      f(static_cast<const void*>(buffer), n);
    }
  }
}

}  // namespace telltale::probe
