// SPDX-License-Identifier: Apache-2.0
//
// Windows of detail: tells the package's manager (telltale/_windows.py) of the borders between
// steps that matter to it. Where no window is planned a border costs two loads, where one is
// planned and not due a comparison; no Python runs.
//
// Thread safety: everything here is touched with the GIL held.
#pragma once

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// A window is planned or open.
extern bool g_windows_wake;
/// Of the plan's windows that the manager has read.
extern std::uint64_t g_windows_epoch;

enum class Border : int {
  kFetch = 0,    ///< A fetch: of which mode the step is, the forward that follows says.
  kForward = 1,  ///< A forward, or the program itself, has said it.
};

[[gnu::cold]] void TellBorder(Border border, int mode);

/// The plan has other windows than the manager has read. Not while they are being written (odd),
/// nor where an agent has died in the midst of that: its successor writes them anew.
inline bool WindowsChanged() {
  const std::uint64_t epoch = tt_windows_epoch();
  return epoch != g_windows_epoch && epoch % 2 == 0;
}

/// After each call of the step machine at which a step may begin. `mode`: of a forward.
inline void StepBorder(Border border, int mode = TT_MODE_TRAIN) {
  if (g_windows_wake || WindowsChanged()) [[unlikely]]
    TellBorder(border, mode);
}

/// What is called at the begin and end of phases while a window wants them; null: no window does.
extern PyObject* g_phase_listener;
[[gnu::cold]] void TellPhase(tt_phase phase, bool begins);

/// Beside each begin (after it) and end (before it) of a phase of the step machine.
inline void PhaseBorder(tt_phase phase, bool begins) {
  if (g_phase_listener != nullptr) [[unlikely]]
    TellPhase(phase, begins);
}

/// Another process, or none yet: what was planned is of the one before.
void ForgetWindows();

/// windows(), windows_wake(...), windows_phases(...).
bool AddWindowFunctions(PyObject* module);

}  // namespace telltale::native
