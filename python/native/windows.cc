// SPDX-License-Identifier: Apache-2.0
#include "windows.h"

#include <time.h>

#include <array>
#include <limits>

#include "state.h"
#include "torch_capture.h"

namespace telltale::native {

bool g_windows_wake = false;
std::uint64_t g_windows_epoch = 0;
PyObject* g_phase_listener = nullptr;

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kModes = 3;  // TRAIN, EVAL, PREDICT.

/// When the manager is to be called next.
struct Wake {
  std::array<std::int64_t, kModes> step{kNever, kNever,
                                        kNever};  ///< From this step of the mode on.
  std::int64_t time_ns = kNever;                  ///< CLOCK_MONOTONIC.
  bool each = false;                              ///< At every new step.
};
Wake g_wake;
std::int64_t g_last_step = -2;
int g_last_mode = -1;
int g_last_said = -1;
/// Mode of the newest forward: a fetch that follows one of training most likely is of training.
int g_forward_mode = TT_MODE_TRAIN;
bool g_telling = false;

/// How sure the mode of a border is; the third argument of on_border.
enum Said : int { kFetch = 0, kFetchAfterTraining = 1, kSaid = 2 };

std::int64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// windows() -> the plan's windows as JSON, "" for none; None: ask again. From then on a border is
/// told when they change.
PyObject* Windows(PyObject*, PyObject*) {
  static char text[TT_MAX_WINDOWS];
  const std::uint64_t epoch = tt_windows_epoch();
  const std::int32_t bytes = epoch == 0 ? 0 : tt_windows(text, sizeof text);
  if (bytes < 0) {
    // Whole and yet not to be read: it is damaged, and the next edit is waited for.
    if (epoch % 2 == 0 && tt_windows_epoch() == epoch) g_windows_epoch = epoch;
    Py_INCREF(Py_None);
    return Py_None;
  }
  g_windows_epoch = epoch;
  return PyUnicode_DecodeUTF8(text, bytes, "replace");
}

/// windows_wake(train, eval, predict, time_ns, each): None: never.
PyObject* WindowsWake(PyObject*, PyObject* args) {
  std::array<PyObject*, kModes + 1> at{};
  int each = 0;
  if (!PyArg_ParseTuple(args, "OOOOp:windows_wake", &at[0], &at[1], &at[2], &at[3], &each)) {
    return nullptr;
  }
  std::array<std::int64_t, kModes + 1> value{};
  for (std::size_t i = 0; i < at.size(); ++i) {
    value[i] = at[i] == Py_None ? kNever : PyLong_AsLongLong(at[i]);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  g_wake = {{value[0], value[1], value[2]}, value[3], each != 0};
  g_windows_wake = each != 0;
  for (const std::int64_t v : value) g_windows_wake = g_windows_wake || v != kNever;
  Py_INCREF(Py_None);
  return Py_None;
}

/// windows_phases(listener): (phase, begins) on the thread that steps, until None is given.
PyObject* WindowsPhases(PyObject*, PyObject* listener) {
  PyObject* old = g_phase_listener;
  g_phase_listener = nullptr;
  if (listener != Py_None) {
    Py_INCREF(listener);
    g_phase_listener = listener;
  }
  Py_XDECREF(old);
  Py_INCREF(Py_None);
  return Py_None;
}

PyMethodDef g_window_functions[] = {
    {"windows", Windows, METH_NOARGS, "windows() -> JSON, \"\" for none; None: ask again"},
    {"windows_wake", WindowsWake, METH_VARARGS,
     "windows_wake(train, eval, predict, time_ns, each): when on_border is called next"},
    {"windows_phases", WindowsPhases, METH_O, "windows_phases(listener or None)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void TellBorder(Border border, int mode) {
  if (g_adapter.on_border == nullptr || g_telling || g_recording != Recording::kOn ||
      tt_owns_steps() == 0) {
    return;
  }
  if (border == Border::kForward) g_forward_mode = mode;
  std::int64_t step = -1;
  const int now_mode = tt_current(&step);
  if (now_mode < 0 || now_mode >= static_cast<int>(kModes)) return;
  const int after_training = g_forward_mode == TT_MODE_TRAIN ? kFetchAfterTraining : kFetch;
  const int said = border == Border::kForward ? kSaid : after_training;
  const bool moved = step != g_last_step || now_mode != g_last_mode || said != g_last_said;
  const bool due = step >= g_wake.step[static_cast<std::size_t>(now_mode)] ||
                   (g_wake.each && moved) || WindowsChanged() ||
                   (g_wake.time_ns != kNever && MonotonicNs() >= g_wake.time_ns);
  g_last_step = step;
  g_last_mode = now_mode;
  g_last_said = said;
  if (!due) return;
  g_telling = true;
  ErrorGuard guard;
  const OutsideCompiler outside;
  const OwnTime own;
  Ref result(PyObject_CallFunction(g_adapter.on_border, "Lii", static_cast<long long>(step),
                                   now_mode, said));
  // The manager handles its own failures: what is left is an interrupt of the user's.
  if (!result) DropError();
  own.Account();
  g_telling = false;
}

void TellPhase(tt_phase phase, bool begins) {
  if (g_telling || g_recording != Recording::kOn || tt_owns_steps() == 0) return;
  g_telling = true;
  ErrorGuard guard;
  const OutsideCompiler outside;
  const OwnTime own;
  PyObject* listener = g_phase_listener;
  Py_INCREF(listener);
  const Ref kept(listener);
  Ref result(
      PyObject_CallFunction(listener, "ii", static_cast<int>(phase), static_cast<int>(begins)));
  if (!result) DropError();
  own.Account();
  g_telling = false;
}

void ForgetWindows() {
  Py_CLEAR(g_phase_listener);
  g_wake = {};
  g_windows_wake = false;
  g_windows_epoch = 0;
  g_last_step = -2;
  g_last_mode = -1;
  g_last_said = -1;
  g_forward_mode = TT_MODE_TRAIN;
  g_telling = false;
}

bool AddWindowFunctions(PyObject* module) {
  return PyModule_AddFunctions(module, g_window_functions) == 0;
}

}  // namespace telltale::native
