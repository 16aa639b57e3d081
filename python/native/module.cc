// SPDX-License-Identifier: Apache-2.0
//
// telltale._probe: the probe's calls as functions, and the types Span and Hook. Internal: users
// call the package telltale.
#include <array>
#include <cstdlib>
#include <cstring>

#include "capture.h"
#include "exceptions.h"
#include "hook.h"
#include "items.h"
#include "profile_function.h"
#include "py_api.h"
#include "span.h"
#include "spans.h"
#include "state.h"
#include "torch_batches.h"
#include "torch_capture.h"
#include "torch_loop.h"
#include "values.h"
#include "windows.h"

namespace telltale::native {
namespace {

PyTypeObject* g_hook_type = nullptr;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

bool Arity(const char* name, Py_ssize_t nargs, Py_ssize_t wanted) {
  if (nargs == wanted) return true;
  PyErr_Format(PyExc_TypeError, "_probe.%s takes %zd arguments, got %zd", name, wanted, nargs);
  return false;
}

/// (calls, bytes, ns)
PyObject* Totals(std::uint64_t calls, std::uint64_t bytes, std::uint64_t ticks) {
  const std::uint64_t per_second = Ticks(1'000'000'000);
  const double ns =
      per_second == 0 ? 0 : static_cast<double>(ticks) * 1e9 / static_cast<double>(per_second);
  return Py_BuildValue("(KKK)", static_cast<unsigned long long>(calls),
                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(ns));
}

/// hook_totals(hook) -> (calls, bytes, ns) of a hook around a collective, of this process.
PyObject* HookTotals(PyObject*, PyObject* object) {
  if (Py_TYPE(object) != g_hook_type) {
    PyErr_SetString(PyExc_TypeError, "_probe.hook_totals takes a Hook");
    return nullptr;
  }
  const auto* hook = reinterpret_cast<const HookObject*>(object);
  return hook->epoch == g_epoch ? Totals(hook->calls, hook->bytes, hook->ticks) : Totals(0, 0, 0);
}

/// hook_calls(hook) -> how often what a hook of kind kSeen stands around was called.
PyObject* HookCalls(PyObject*, PyObject* object) {
  if (Py_TYPE(object) != g_hook_type) {
    PyErr_SetString(PyExc_TypeError, "_probe.hook_calls takes a Hook");
    return nullptr;
  }
  return PyLong_FromUnsignedLongLong(reinterpret_cast<const HookObject*>(object)->calls);
}

/// copy_totals(to_host) -> (calls, bytes, ns) of the copies to the host, or to a device.
PyObject* CopyTotalsOf(PyObject*, PyObject* object) {
  const int to_host = PyObject_IsTrue(object);
  if (to_host < 0) return nullptr;
  const CopyTotals& totals = g_copies[to_host];
  return Totals(totals.calls, totals.bytes, totals.ticks);
}

/// Memory of a tensor, which a framework names by its address as an integer.
const void* Memory(unsigned long long address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): there is no pointer to derive it from.
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}

PyObject* ReadyFunction(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("ready", nargs, 1)) return nullptr;
  const long kind = PyLong_AsLong(args[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyBool_FromLong(Ready(static_cast<tt_process_kind>(kind)) ? 1 : 0);
}

PyObject* Active(PyObject*, PyObject*) {
  return PyBool_FromLong(g_recording == Recording::kOn && tt_active() != 0);
}

PyObject* SetRank(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("set_rank", nargs, 1)) return nullptr;
  const long rank = PyLong_AsLong(args[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  tt_set_rank(static_cast<std::int32_t>(rank));
  return None();
}

PyObject* DisableFunction(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("disable", nargs, 1)) return nullptr;
  Ref text(PyUnicode_AsEncodedString(args[0], "utf-8", "backslashreplace"));
  if (!text) return nullptr;
  Disable(PyBytes_AsString(text.get()));
  return None();
}

PyObject* AfterFork(PyObject*, PyObject*) {
  AfterForkInChild();
  return None();
}

PyObject* KeepForever(PyObject*, PyObject* object) {
  Py_INCREF(object);
  return None();
}

/// A time that now() gave, and what the thread had accounted for by then.
struct Mark {
  std::uint64_t time;
  std::uint64_t recorded;
};
/// Of the newest calls: adapters nest what they measure a few times at most.
struct Marks {
  std::array<Mark, 32> newest{};
  std::size_t count = 0;
};
thread_local Marks t_marks;

PyObject* Now(PyObject*, PyObject*) {
  const std::uint64_t now = tt_now();
  t_marks.newest[t_marks.count++ % t_marks.newest.size()] = {now, ThisThread().recorded_ticks};
  return PyLong_FromUnsignedLongLong(now);
}

/// account(begin): what was recorded in between has accounted for itself.
PyObject* Account(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("account", nargs, 1)) return nullptr;
  const unsigned long long begin = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::uint64_t recorded = ThisThread().recorded_ticks;
  for (const Mark& mark : t_marks.newest) {
    if (mark.time == begin) recorded = mark.recorded;
  }
  OwnTime(begin, recorded).Account();
  return None();
}

PyObject* Scalar(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("scalar", nargs, 2)) return nullptr;
  const double value = PyFloat_AsDouble(args[1]);
  if (value == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
  if (!Ready(TT_PROCESS_TRAINER)) return None();
  std::uint32_t name = 0;
  if (!NameId(args[0], &name)) return nullptr;
  tt_scalar(name, value);
  return None();
}

PyObject* LossLater(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(g_recording == Recording::kOn ? tt_loss_later() : 0);
}

PyObject* LossArrived(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("loss_arrived", nargs, 2)) return nullptr;
  const unsigned long long loss = PyLong_AsUnsignedLongLong(args[0]);
  const double value = PyFloat_AsDouble(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (g_recording == Recording::kOn) tt_loss_arrived(loss, value);
  return None();
}

PyObject* Event(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("event", nargs, 5)) return nullptr;
  if (!Ready(TT_PROCESS_TRAINER)) return None();
  std::uint32_t kind = 0, subject = 0;
  const long severity = PyLong_AsLong(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!NameId(args[0], &kind) || !NameId(args[2], &subject)) return nullptr;
  Ref message(PyUnicode_AsEncodedString(args[3], "utf-8", "backslashreplace"));
  Ref data(PyUnicode_AsEncodedString(args[4], "utf-8", "backslashreplace"));
  if (!message || !data) return nullptr;
  tt_event(kind, static_cast<tt_severity>(severity), subject, PyBytes_AsString(message.get()),
           static_cast<std::size_t>(PyBytes_Size(message.get())), PyBytes_AsString(data.get()),
           static_cast<std::size_t>(PyBytes_Size(data.get())));
  return None();
}

PyObject* Step(PyObject*, PyObject*) {
  if (Ready(TT_PROCESS_TRAINER) && !g_worker) {
    g_machine_owned = true;
    tt_step();
    StepBorder(Border::kFetch);  // A forward may still say that an evaluation begins.
  }
  return None();
}

PyObject* Finish(PyObject*, PyObject*) {
  FinishSpans();
  if (g_recording == Recording::kOn) tt_finish();
  return None();
}

PyObject* Name(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("name", nargs, 1)) return nullptr;
  std::uint32_t id = 0;
  if (g_recording == Recording::kOn && !NameId(args[0], &id)) return nullptr;
  return None();
}

PyObject* CountSkipped(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("count_skipped", nargs, 2)) return nullptr;
  const unsigned long long n = PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::uint32_t reason = 0;
  if (g_recording != Recording::kOn) return None();
  if (args[0] != Py_None && !NameId(args[0], &reason)) return nullptr;
  tt_count_skipped(reason, n);
  return None();
}

/// compute_stats(address, count, dtype) -> (count, nan, inf, zeros, min, max, mean, std, l1, l2).
PyObject* ComputeStats(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (!Arity("compute_stats", nargs, 3)) return nullptr;
  const unsigned long long address = PyLong_AsUnsignedLongLong(args[0]);
  const unsigned long long count = PyLong_AsUnsignedLongLong(args[1]);
  const long dtype = PyLong_AsLong(args[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  tt_stats s;
  std::memset(&s, 0, sizeof s);
  PyThreadState* thread = PyEval_SaveThread();
  const int failed = tt_compute_stats(Memory(address), count, static_cast<tt_dtype>(dtype), &s);
  PyEval_RestoreThread(thread);
  if (failed != 0) return None();
  return Py_BuildValue(
      "(KKKKdddddd)", static_cast<unsigned long long>(s.count),
      static_cast<unsigned long long>(s.nan_count), static_cast<unsigned long long>(s.inf_count),
      static_cast<unsigned long long>(s.zero_count), s.min, s.max, s.mean, s.std, s.l1, s.l2);
}

/// configure(**callbacks): what the adapter gives us; see Adapter.
PyObject* Configure(PyObject*, PyObject*, PyObject* kwargs) {
  Adapter& a = g_adapter;
  const Slot slots[] = {
      {"on_wake", &a.on_wake},
      {"on_awake", &a.on_awake},
      {"on_root", &a.on_root},
      {"on_optimizer", &a.on_optimizer},
      {"on_stats", &a.on_stats},
      {"on_loader", &a.on_loader},
      {"on_group", &a.on_group},
      {"on_device_loss", &a.on_device_loss},
      {"on_device_eval", &a.on_device_eval},
      {"grad_enabled", &a.grad_enabled},
      {"function_mode", &a.function_mode},
      {"float32", &a.float32},
      {"on_eval", &a.on_eval},
      {"on_queue", &a.on_queue},
      {"on_second", &a.on_second},
      {"on_item", &a.on_item},
      {"on_manual", &a.on_manual},
      {"on_gradient", &a.on_gradient},
      {"on_scale", &a.on_scale},
      {"on_again", &a.on_again},
      {"length_of", &a.length_of},
      {"on_fetch", &a.on_fetch},
      {"on_fetched", &a.on_fetched},
      {"decorate", &a.decorate},
      {"on_border", &a.on_border},
      {"tensor_type", AnyObject(&a.tensor_type), Py_TPFLAGS_TYPE_SUBCLASS},
      {"loss_type", AnyObject(&a.loss_type), Py_TPFLAGS_TYPE_SUBCLASS},
      {"user_dict_type", AnyObject(&a.user_dict_type), Py_TPFLAGS_TYPE_SUBCLASS},
  };
  if (!FillSlots("configure", slots, kwargs)) return nullptr;
  TensorTypeChanged();
  RenewSamplers();
  return None();
}

PyCFunction Fast(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

/// Calls `callback`; an exception that comes out of it ends here. A signal handler of the program's
/// (torch's, of a loader's worker that died) may raise in any line of Python: raised in ours at the
/// end of the process, it would be printed as ours.
PyObject* RunQuietly(PyObject*, PyObject* callback) {
  const Ref result(PyObject_CallObject(callback, nullptr));
  if (!result) PyErr_Clear();
  return None();
}

PyMethodDef g_functions[] = {
    {"span", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(SpanFunction)),
     METH_FASTCALL | METH_KEYWORDS, "span(name) -> Span"},
    {"ready", Fast(ReadyFunction), METH_FASTCALL, "ready(kind_hint) -> bool; registers if needed"},
    {"active", Active, METH_NOARGS, "Whether this process records."},
    {"set_rank", Fast(SetRank), METH_FASTCALL, "set_rank(rank)"},
    {"disable", Fast(DisableFunction), METH_FASTCALL, "disable(reason)"},
    {"after_fork", AfterFork, METH_NOARGS, "This is a forked child."},
    {"keep_forever", KeepForever, METH_O, "keep_forever(object): it is never freed"},
    {"now", Now, METH_NOARGS, "The channel's clock."},
    {"account", Fast(Account), METH_FASTCALL, "account(begin): time since then was ours"},
    {"scalar", Fast(Scalar), METH_FASTCALL, "scalar(name, value)"},
    {"loss_later", LossLater, METH_NOARGS, "loss_later() -> what loss_arrived calls it, or 0"},
    {"loss_arrived", Fast(LossArrived), METH_FASTCALL, "loss_arrived(loss, value)"},
    {"event", Fast(Event), METH_FASTCALL, "event(kind, severity, subject, message, data)"},
    {"step", Step, METH_NOARGS, "Closes the open step."},
    {"finish", Finish, METH_NOARGS, "Closes what is open, at exit."},
    {"name", Fast(Name), METH_FASTCALL, "name(text): announces a name, for the plan to answer it"},
    {"count_skipped", Fast(CountSkipped), METH_FASTCALL,
     "count_skipped(reason, n); None: without a reason"},
    {"compute_stats", Fast(ComputeStats), METH_FASTCALL, "compute_stats(address, count, dtype)"},
    {"hook_totals", HookTotals, METH_O, "hook_totals(hook) -> (calls, bytes, ns)"},
    {"hook_calls", HookCalls, METH_O, "hook_calls(hook) -> int"},
    {"on_uncaught", OnUncaught, METH_O, "on_uncaught(callback) -> bool; callback(exception)"},
    {"run_quietly", RunQuietly, METH_O, "run_quietly(callback): no exception comes out of it"},
    {"has_profile_function", HasProfileFunction, METH_NOARGS,
     "has_profile_function() -> bool of the calling thread; None: not known"},
    {"copy_totals", CopyTotalsOf, METH_O, "copy_totals(to_host) -> (calls, bytes, ns)"},
    {"configure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Configure)),
     METH_VARARGS | METH_KEYWORDS, "configure(**callbacks)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "telltale._probe",
                        "The probe's binding; internal.",
                        -1,
                        g_functions,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace
}  // namespace telltale::native

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__probe() {
  using namespace telltale::native;
  if (std::getenv("TELLTALE_SOCKET") == nullptr) g_recording = Recording::kOff;
  InitCallVector();
  InitCapture();
  PyObject* module = PyModule_Create(&g_module);
  if (module == nullptr) return nullptr;
  PyObject* hook = MakeHookType();
  PyObject* span = MakeSpanType();
  g_hook_type = reinterpret_cast<PyTypeObject*>(hook);
  if (hook == nullptr || span == nullptr || !AddCaptureFunctions(module) ||
      !AddWindowFunctions(module) || !AddSpanFunctions(module) || !InitItems() ||
      !InitTorchCapture() || PyModule_AddFunctions(module, g_torch_capture_functions) != 0 ||
      PyModule_AddFunctions(module, g_torch_loop_functions) != 0 || !InitTorchBatches() ||
      PyModule_AddFunctions(module, g_torch_batches_functions) != 0 ||
      PyModule_AddObject(module, "Hook", hook) != 0 ||
      PyModule_AddObject(module, "Span", span) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
