// SPDX-License-Identifier: Apache-2.0
// Preloaded into `telltale run`: while the file NO_MEMORY_GATE is there it gets no memory.
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "supervisor_only.h"

void* operator new(std::size_t size) {
  static const char* const gate = IsSupervisor() != 0 ? ::getenv("NO_MEMORY_GATE") : nullptr;
  if (gate != nullptr && ::access(gate, F_OK) == 0) throw std::bad_alloc();
  void* const got = std::malloc(size == 0 ? 1 : size);
  if (got == nullptr) throw std::bad_alloc();
  return got;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
