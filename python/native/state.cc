// SPDX-License-Identifier: Apache-2.0
#include "state.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "capture.h"
#include "fetches.h"
#include "hook.h"
#include "items.h"
#include "spans.h"
#include "torch_batches.h"
#include "torch_capture.h"
#include "torch_gradients.h"
#include "torch_loop.h"
#include "windows.h"

namespace telltale::native {

Recording g_recording = Recording::kCold;
bool g_forked = false;
bool g_fetch_seen = false;
bool g_acts = false;
bool g_acts_untold = false;
bool g_machine_owned = false;
std::uint32_t g_epoch = 0;
bool g_worker = false;
int g_backwards = 0;
Adapter g_adapter;
Names g_names;
PyObject* g_name_ids = nullptr;

namespace {
// The thread that loaded us; imports normally happen on the main one.
const pthread_t g_first_thread = pthread_self();
pthread_t g_main_thread = g_first_thread;
}  // namespace

[[gnu::hot]] ThreadState& ThisThread() {
  static thread_local ThreadState state;
  return state;
}

[[gnu::hot]] bool MayFetch() {
  return g_machine_owned || pthread_equal(pthread_self(), g_main_thread) != 0;
}

[[gnu::hot]] bool HelpsBackward() {
  return g_backwards > 0 && !ThisThread().trains &&
         pthread_equal(pthread_self(), g_main_thread) == 0;
}

bool NameId(PyObject* text, std::uint32_t* id) {
  if (g_name_ids == nullptr && (g_name_ids = PyDict_New()) == nullptr) return false;
  const bool keep = MayKeep(text);
  PyObject* known = keep ? PyDict_GetItemWithError(g_name_ids, text) : nullptr;
  if (known != nullptr) {
    *id = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(known));
    return true;
  }
  if (PyErr_Occurred() != nullptr) return false;
  // Not PyUnicode_AsUTF8AndSize: it is in the stable ABI only from 3.10. Surrogates are kept
  // legible.
  Ref bytes(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
  if (!bytes) return false;
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) return false;
  *id = tt_name(data, static_cast<std::size_t>(size));
  // Bounded: a name made anew at each call must not grow the training's memory.
  if (!keep || *id == 0 || PyDict_Size(g_name_ids) >= 65536) return true;
  Ref number(PyLong_FromUnsignedLong(*id));
  return number && PyDict_SetItem(g_name_ids, text, number.get()) == 0;
}

bool WakeUp(tt_process_kind hint) {
  // Off while we register: what the callback itself calls must not come back here.
  g_recording = Recording::kOff;
  long kind = hint;
  if (g_adapter.on_wake != nullptr) {
    ErrorGuard guard;
    const OutsideCompiler outside;
    Ref result(PyObject_CallFunction(g_adapter.on_wake, "ii", static_cast<int>(hint),
                                     static_cast<int>(g_forked)));
    if (result) kind = PyLong_AsLong(result.get());
    if (PyErr_Occurred() != nullptr) {
      if (!result && PyErr_ExceptionMatches(PyExc_Exception) == 0) g_recording = Recording::kCold;
      DisableByException("on_wake");
      return false;
    }
    if (kind < 0) return false;
  }
  const auto process_kind = static_cast<tt_process_kind>(kind);
  // A fork from a process that had not registered leaves nothing to renew.
  int active = g_forked ? tt_reinit_after_fork(process_kind) : 0;
  if (active == 0) active = tt_init(process_kind, -1);
  if (active != 0) {
    if (g_name_ids != nullptr) PyDict_Clear(g_name_ids);
    ForgetTensors();
    ForgetWindows();
    g_names.fetch = tt_name("fetch", 5);
    g_names.loss = tt_name("loss", 4);
    g_worker = process_kind == TT_PROCESS_WORKER;
    g_forked = false;
    ++g_epoch;
    g_recording = Recording::kOn;
    SpansAwake();
    Ref number(PyLong_FromLong(kind));
    CallAdapter(g_adapter.on_awake, number.get(), "on_awake");
  }
  return g_recording == Recording::kOn;
}

void Disable(const char* reason) {
  g_recording = Recording::kOff;
  tt_disable(reason, std::strlen(reason));
}

namespace {

// An exception on its way from a signal handler of the user's to the user's code.
PyObject *g_late_type = nullptr, *g_late_value = nullptr, *g_late_traceback = nullptr;

int RaiseLate(void*) {
  if (g_late_type == nullptr) return 0;
  PyErr_Restore(g_late_type, g_late_value, g_late_traceback);
  g_late_type = g_late_value = g_late_traceback = nullptr;
  return -1;
}

/// Ctrl-C, or a handler that raises SystemExit, came while our Python code ran: it is the user's,
/// so it is raised again as soon as the interpreter runs on. True where the pending exception was
/// one.
bool PassOnInterrupt() {
  if (PyErr_ExceptionMatches(PyExc_Exception) != 0) return false;
  if (g_late_type != nullptr) {
    PyErr_Clear();
    return true;
  }
  PyErr_Fetch(&g_late_type, &g_late_value, &g_late_traceback);
  if (Py_AddPendingCall(RaiseLate, nullptr) == 0) return true;
  // No room: the user gets a Ctrl-C of the same moment instead.
  PyErr_Restore(g_late_type, g_late_value, g_late_traceback);
  g_late_type = g_late_value = g_late_traceback = nullptr;
  PyErr_Clear();
  PyErr_SetInterrupt();
  return true;
}

}  // namespace

[[gnu::hot]] void DropError() {
  if (PyErr_Occurred() != nullptr && !PassOnInterrupt()) PyErr_Clear();
}

void DisableByException(const char* where) {
  if (PassOnInterrupt()) return;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  char reason[512];
  const char* text = nullptr;
  Ref name(type != nullptr ? PyObject_GetAttrString(type, "__name__") : nullptr);
  Ref message(value != nullptr ? PyObject_Str(value) : nullptr);
  Ref name_bytes(name ? PyUnicode_AsUTF8String(name.get()) : nullptr);
  Ref message_bytes(message ? PyUnicode_AsUTF8String(message.get()) : nullptr);
  text = message_bytes ? PyBytes_AsString(message_bytes.get()) : "";
  std::snprintf(reason, sizeof reason, "hook %s failed: %s: %s", where,
                name_bytes ? PyBytes_AsString(name_bytes.get()) : "unknown error",
                text != nullptr ? text : "");
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  Disable(reason);
}

void CallAdapter(PyObject* callback, PyObject* argument, const char* where) {
  if (callback == nullptr) return;
  ErrorGuard guard;
  const OutsideCompiler outside;
  Ref result(PyObject_CallFunctionObjArgs(callback, argument, nullptr));
  if (!result) DisableByException(where);
}

void AfterForkInChild() {
  if (std::getenv("TELLTALE_SOCKET") == nullptr) return;
  g_recording = Recording::kCold;
  g_forked = true;
  g_fetch_seen = false;
  g_acts_untold = g_acts;
  g_machine_owned = false;
  g_backwards = 0;
  g_main_thread = pthread_self();
  ThreadState& thread = ThisThread();
  thread.module_base = thread.module_depth;
  thread.backward_depth = thread.optimizer_depth = thread.next_depth = thread.wait_depth = 0;
  thread.loss_depth = thread.move_depth = thread.schedule_depth = 0;
  thread.in_scaler = false;
  thread.watching = 0;
  thread.root_open = false;
  thread.timed_count = 0;
  ForgetSpans();
  ForgetItems();
  ForgetFetches();
  ForgetCopies();
  ForgetBatches();
  ForgetGradients();
  ForgetLoop();
}

}  // namespace telltale::native
