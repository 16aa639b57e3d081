// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace telltale {

void KeepFreedMemory([[maybe_unused]] int block, [[maybe_unused]] int kept) {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, block);
  ::mallopt(M_TRIM_THRESHOLD, kept);
#endif
}

void KeepFreedMemoryOfReading() {
  KeepFreedMemory(32 << 20, 256 << 20);
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 0);  // Who has chosen one keeps it.
}

}  // namespace telltale
