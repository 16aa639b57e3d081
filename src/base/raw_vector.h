// SPDX-License-Identifier: Apache-2.0
// A vector whose new elements are not cleared: for buffers that are filled at once.
#pragma once
#include <memory>
#include <utility>
#include <vector>

namespace telltale {

template <class T>
struct RawAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = RawAllocator<U>;
  };
  RawAllocator() = default;
  template <class U>
  RawAllocator(const RawAllocator<U>&) {
  }  // NOLINT(google-explicit-constructor): as all of its kind.

  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

/// resize(n) leaves what is new as the memory was.
template <class T>
using RawVector = std::vector<T, RawAllocator<T>>;

}  // namespace telltale
