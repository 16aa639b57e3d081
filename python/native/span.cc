// SPDX-License-Identifier: Apache-2.0
#include "span.h"

#include "state.h"

namespace telltale::native {
namespace {

// One object may be entered again before it is left (recursion); deeper entries are not recorded.
constexpr int kMaxNesting = 8;

struct SpanObject {
  PyObject_HEAD PyObject* name;  ///< Owned.
  std::uint32_t id;
  std::uint32_t epoch;  ///< g_epoch for which `id` holds; 0 never.
  int nesting;
  std::uint64_t begin[kMaxNesting];  ///< 0: was not recording at enter.
};

PyTypeObject* g_span_type = nullptr;

/// Of the spans that were dropped last, with their names: `with telltale.span("x")` makes one at
/// each pass of a loop, and the one of the pass before is its like. Guarded by the GIL.
constexpr int kMaxSpare = 8;
PyObject* g_spare[kMaxSpare];
int g_spares = 0;

SpanObject* AsSpan(PyObject* self) { return reinterpret_cast<SpanObject*>(self); }

PyObject* Make(PyTypeObject* type, PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_SetString(PyExc_TypeError, "telltale.span: the name must be a str");
    return nullptr;
  }
  if (g_spares > 0) {
    PyObject* self = g_spare[--g_spares];
    SpanObject* span = AsSpan(self);
    PyObject* former = span->name;
    Py_INCREF(name);
    span->name = name;
    if (name != former) span->epoch = 0;
    span->nesting = 0;
    PyObject_Init(self, type);
    Py_DECREF(former);  // A plain str: it runs nothing.
    return self;
  }
  using Alloc = PyObject* (*)(PyTypeObject*, Py_ssize_t);
  static const auto alloc = reinterpret_cast<Alloc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (self == nullptr) return nullptr;
  Py_INCREF(name);
  AsSpan(self)->name = name;
  return self;
}

/// A long name is not held back, nor one of a class of the user's, which may hold anything.
bool KeepsLittle(PyObject* name) {
  return PyUnicode_CheckExact(name) && PyUnicode_GetLength(name) <= 256;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  if (!PyArg_ParseTuple(args, "O:Span", &name)) return nullptr;
  return Make(type, name);
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (g_spares < kMaxSpare && AsSpan(self)->name != nullptr && KeepsLittle(AsSpan(self)->name)) {
    g_spare[g_spares++] = self;
    Py_DECREF(type);
    return;
  }
  Py_XDECREF(AsSpan(self)->name);
  using Free = void (*)(void*);
  static const auto free_slot = reinterpret_cast<Free>(PyType_GetSlot(type, Py_tp_free));
  free_slot(self);
  Py_DECREF(type);
}

PyObject* Enter(PyObject* self, PyObject*) {
  SpanObject* span = AsSpan(self);
  const int level = span->nesting++;
  if (level < kMaxNesting) {
    std::uint64_t begin = 0;
    if (Ready(TT_PROCESS_TRAINER)) {
      if (span->epoch != g_epoch) {
        if (NameId(span->name, &span->id)) {
          span->epoch = g_epoch;
        } else {
          PyErr_Clear();
        }
      }
      if (span->epoch == g_epoch) begin = tt_now();
    }
    span->begin[level] = begin;
  }
  Py_INCREF(self);
  return self;
}

PyObject* Exit(PyObject* self, PyObject* const*, Py_ssize_t) {
  SpanObject* span = AsSpan(self);
  if (span->nesting > 0) {
    const int level = --span->nesting;
    if (level < kMaxNesting && span->begin[level] != 0 && g_recording == Recording::kOn &&
        span->epoch == g_epoch) {
      tt_span(span->id, span->begin[level], tt_now(), TT_SPAN_USER);
    }
  }
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* Call(PyObject* self, PyObject* args, PyObject*) {
  PyObject* function = nullptr;
  if (!PyArg_ParseTuple(args, "O:span", &function)) return nullptr;
  if (g_adapter.decorate == nullptr) {
    Py_INCREF(function);
    return function;
  }
  return PyObject_CallFunctionObjArgs(g_adapter.decorate, AsSpan(self)->name, function, nullptr);
}

PyMethodDef kMethods[] = {
    {"__enter__", Enter, METH_NOARGS, "Begins the span."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Exit)), METH_FASTCALL,
     "Ends the span and records it; exceptions pass."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(Call)},
    {Py_tp_methods, kMethods},
    {0, nullptr},
};

PyType_Spec kSpec = {"telltale._probe.Span", sizeof(SpanObject), 0,
                     static_cast<unsigned>(Py_TPFLAGS_DEFAULT), kSlots};

}  // namespace

PyObject* MakeSpanType() {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type != nullptr && g_span_type == nullptr) {
    Py_INCREF(type);
    g_span_type = reinterpret_cast<PyTypeObject*>(type);
  }
  return type;
}

PyObject* SpanFunction(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Py_ssize_t named = kwnames != nullptr ? PyTuple_Size(kwnames) : 0;
  const bool by_name = nargs == 0 && named == 1 &&
                       PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, 0), "name") == 0;
  if (!by_name && (nargs != 1 || named != 0)) {
    PyErr_SetString(PyExc_TypeError, "telltale.span takes one argument, the name");
    return nullptr;
  }
  return Make(g_span_type, args[0]);
}

}  // namespace telltale::native
