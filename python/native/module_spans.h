// SPDX-License-Identifier: Apache-2.0
//
// Spans of detail: each call of a module inside a root's forward, under its path in the module
// tree. The agent holds them in memory and stores those around a finding (docs/guide/windows.md).
//
// Thread safety: everything here is touched with the GIL held.
#pragma once

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// With the kWatch bits of torch_capture.h: the calls inside this forward have spans.
inline constexpr int kWatchSpans = 4;

/// A root's forward begins: kWatchSpans where its calls are recorded, else 0.
int WatchSpans();

/// A call of a module, from its construction to its destruction; of null nothing is recorded. What
/// it costs is measured at one of sixteen, for all of them.
class ModuleSpan {
 public:
  explicit ModuleSpan(PyObject* module);
  ~ModuleSpan();
  ModuleSpan(const ModuleSpan&) = delete;
  ModuleSpan& operator=(const ModuleSpan&) = delete;

 private:
  std::uint32_t name_ = 0;
  std::uint32_t epoch_ = 0;  ///< g_epoch of the name; 0: nothing is recorded.
  std::uint64_t begin_ = 0;
  std::uint64_t own_ = 0;  ///< What the begin cost; 0: not measured.
};

}  // namespace telltale::native
