// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that our arithmetic runs in: a training that flushes denormals or
// traps on NaN must neither change our counts nor be trapped by them; its sticky flags stay.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace telltale::probe {

/// The default environment as long as it lives, then the caller's again.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
  DefaultFloatEnvironment() {}   // NOLINT: with a body, so that none is taken for unused.
  ~DefaultFloatEnvironment() {}  // NOLINT
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#endif
};

}  // namespace telltale::probe
