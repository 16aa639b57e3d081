// SPDX-License-Identifier: Apache-2.0
#include "span.h"

#include <cstddef>

#include "state.h"

namespace telltale::native {
namespace {

// One object may be entered again before it is left (recursion); deeper entries are not recorded.
constexpr int kMaxNesting = 8;

/// `span.__enter__` or `span.__exit__`, as `with` asks for both each time: it lies within its span,
/// and owns a reference to it while it has any of its own. One that the interpreter would make is
/// allocated, tracked by the collector and freed.
struct BoundObject {
  PyObject_HEAD Vectorcall vectorcall;
};

struct SpanObject {
  PyObject_HEAD PyObject* name;  ///< Owned.
  BoundObject enter, exit;
  std::uint32_t id;
  std::uint32_t epoch;  ///< g_epoch for which `id` holds; 0 never.
  bool keeps_little;    ///< It may be a spare.
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

void SetName(SpanObject* span, PyObject* name) {
  Py_INCREF(name);
  span->name = name;
  span->epoch = 0;
  // A long name is not held back, nor one of a class of the user's, which may hold anything.
  const Py_ssize_t length = PyUnicode_CheckExact(name) ? PyUnicode_GetLength(name) : -1;
  if (length < 0) PyErr_Clear();
  span->keeps_little = length >= 0 && length <= 256;
}

PyObject* Make(PyTypeObject* type, PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_SetString(PyExc_TypeError, "telltale.span: the name must be a str");
    return nullptr;
  }
  if (g_spares > 0) {
    PyObject* self = g_spare[--g_spares];
    SpanObject* span = AsSpan(self);
    span->nesting = 0;
    PyObject_Init(self, type);
    if (name == span->name) return self;
    PyObject* former = span->name;
    SetName(span, name);
    Py_DECREF(former);  // A plain str: it runs nothing.
    return self;
  }
  using Alloc = PyObject* (*)(PyTypeObject*, Py_ssize_t);
  static const auto alloc = reinterpret_cast<Alloc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (self != nullptr) SetName(AsSpan(self), name);
  return self;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  if (!PyArg_ParseTuple(args, "O:Span", &name)) return nullptr;
  return Make(type, name);
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (g_spares < kMaxSpare && AsSpan(self)->keeps_little) {
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

/// Copies and pickles are made anew of the name's text, by telltale.span: models that hold one are
/// copied and saved, and loaded where nothing is recorded.
PyObject* Reduce(PyObject* self, PyObject*) {
  const Ref package(PyImport_ImportModule("telltale"));
  if (!package) return nullptr;
  const Ref make(PyObject_GetAttrString(package.get(), "_span_of"));
  if (!make) return nullptr;
  // Of a class of the user's it may be what cannot be pickled, or loaded elsewhere.
  const Ref name(PyUnicode_FromObject(AsSpan(self)->name));
  if (!name) return nullptr;
  return Py_BuildValue("O(O)", make.get(), name.get());
}

/// How a span's method is found: bound of a span, plain of the class.
struct MethodObject {
  PyObject_HEAD PyObject* plain;  ///< Owned; takes the span as its argument.
  PyTypeObject* type;             ///< The span's, which lives as long as the process.
  PyTypeObject* bound_type;       ///< Owned.
  std::ptrdiff_t bound_at;        ///< Of the BoundObject in a SpanObject.
  Vectorcall call;
};

PyObject* SpanOf(PyObject* bound, std::ptrdiff_t at) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<char*>(bound) - at);
}

/// Nothing is freed: its memory is the span's. Its type lives as long as the process.
template <std::ptrdiff_t At>
void DropBound(PyObject* self) {
  Py_DECREF(SpanOf(self, At));
}

constexpr std::ptrdiff_t kEnterAt = offsetof(SpanObject, enter);
constexpr std::ptrdiff_t kExitAt = offsetof(SpanObject, exit);

bool HasNames(PyObject* kwnames) { return kwnames != nullptr && PyTuple_Size(kwnames) != 0; }

PyObject* CallEnter(PyObject* self, PyObject* const*, std::size_t nargsf, PyObject* kwnames) {
  if (ArgCount(nargsf) != 0 || HasNames(kwnames)) {
    PyErr_SetString(PyExc_TypeError, "Span.__enter__() takes no arguments");
    return nullptr;
  }
  return Enter(SpanOf(self, kEnterAt), nullptr);
}

PyObject* CallExit(PyObject* self, PyObject* const*, std::size_t, PyObject* kwnames) {
  if (HasNames(kwnames)) {
    PyErr_SetString(PyExc_TypeError, "Span.__exit__() takes no keyword arguments");
    return nullptr;
  }
  return Exit(SpanOf(self, kExitAt), nullptr, 0);
}

/// For callers that know no vectorcall.
PyObject* CallBound(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (kwargs != nullptr && PyDict_Size(kwargs) != 0) {
    PyErr_SetString(PyExc_TypeError, "a span's methods take no keyword arguments");
    return nullptr;
  }
  return reinterpret_cast<BoundObject*>(self)->vectorcall(
      self, nullptr, static_cast<std::size_t>(PyTuple_Size(args)), nullptr);
}

PyObject* GetBound(PyObject* self, PyObject* span, PyObject*) {
  const auto* method = reinterpret_cast<MethodObject*>(self);
  if (span == nullptr || Py_TYPE(span) != method->type) {
    Py_INCREF(method->plain);
    return method->plain;
  }
  auto* bound = reinterpret_cast<BoundObject*>(reinterpret_cast<char*>(span) + method->bound_at);
  auto* object = reinterpret_cast<PyObject*>(bound);
  if (Py_REFCNT(object) > 0) {
    Py_INCREF(object);
    return object;
  }
  // Each `with` comes here twice, so the object is begun anew without a call.
  bound->vectorcall = method->call;
  Py_SET_TYPE(object, method->bound_type);
  Py_SET_REFCNT(object, 1);
  Py_INCREF(span);
  return object;
}

PyMethodDef kEnterMethod = {"__enter__", Enter, METH_NOARGS, "Begins the span."};
PyMethodDef kExitMethod = {"__exit__",
                           reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Exit)),
                           METH_FASTCALL, "Ends the span and records it; exceptions pass."};

PyMemberDef kBoundMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoundObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

/// Neither of them is anything without its span.
PyObject* Refuse(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "only a span has one");
  return nullptr;
}

template <std::ptrdiff_t At>
PyObject* SelfOfBound(PyObject* self, void*) {
  PyObject* span = SpanOf(self, At);
  Py_INCREF(span);
  return span;
}

/// As a method of Python's: by its name, of the span's copy.
template <std::ptrdiff_t At>
PyObject* ReduceBound(PyObject* self, PyObject*) {
  const Ref builtins(PyImport_ImportModule("builtins"));
  if (!builtins) return nullptr;
  const Ref get(PyObject_GetAttrString(builtins.get(), "getattr"));
  if (!get) return nullptr;
  return Py_BuildValue("O(Os)", get.get(), SpanOf(self, At),
                       At == kEnterAt ? kEnterMethod.ml_name : kExitMethod.ml_name);
}

PyObject* NameOfBound(PyObject*, void* method) {
  return PyUnicode_FromString(static_cast<PyMethodDef*>(method)->ml_name);
}

PyObject* DocOfBound(PyObject*, void* method) {
  return PyUnicode_FromString(static_cast<PyMethodDef*>(method)->ml_doc);
}

template <std::ptrdiff_t At>
PyObject* MakeBoundType(const char* name, PyMethodDef* method) {
  static PyGetSetDef fields[] = {
      {"__self__", SelfOfBound<At>, nullptr, nullptr, nullptr},
      {"__name__", NameOfBound, nullptr, nullptr, method},
      {"__doc__", DocOfBound, nullptr, nullptr, method},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyMethodDef methods[] = {
      {"__reduce__", ReduceBound<At>, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(Refuse)},
      {Py_tp_methods, methods},
      {Py_tp_getset, fields},
      {Py_tp_dealloc, reinterpret_cast<void*>(DropBound<At>)},
      {Py_tp_call, reinterpret_cast<void*>(CallBound)},
      {Py_tp_members, kBoundMembers},
      {0, nullptr},
  };
  PyType_Spec spec = {name, sizeof(BoundObject), 0,
                      static_cast<unsigned>(Py_TPFLAGS_DEFAULT | kTypeHaveVectorcall), slots};
  return PyType_FromSpec(&spec);
}

/// Sets the method of the span's type; false with an exception. What it makes lives as long as the
/// process, as the type does.
bool SetMethod(PyObject* type, PyTypeObject* method_type, PyMethodDef* plain, PyObject* bound_type,
               std::ptrdiff_t at, Vectorcall call) {
  const Ref bound(bound_type);
  const Ref method(PyType_GenericAlloc(method_type, 0));
  const Ref function(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), plain));
  if (!bound || !method || !function) return false;
  auto* fields = reinterpret_cast<MethodObject*>(method.get());
  Py_INCREF(function.get());
  fields->plain = function.get();
  fields->type = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(bound.get());
  fields->bound_type = reinterpret_cast<PyTypeObject*>(bound.get());
  fields->bound_at = at;
  fields->call = call;
  return PyObject_SetAttrString(type, plain->ml_name, method.get()) == 0;
}

bool SetMethods(PyObject* type) {
  PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(Refuse)},
      {Py_tp_descr_get, reinterpret_cast<void*>(GetBound)},
      {0, nullptr},
  };
  PyType_Spec spec = {"telltale._probe.SpanMethod", sizeof(MethodObject), 0,
                      static_cast<unsigned>(Py_TPFLAGS_DEFAULT), slots};
  const Ref method_type(PyType_FromSpec(&spec));
  if (!method_type) return false;
  auto* of = reinterpret_cast<PyTypeObject*>(method_type.get());
  return SetMethod(type, of, &kEnterMethod,
                   MakeBoundType<kEnterAt>("telltale._probe.SpanEnter", &kEnterMethod), kEnterAt,
                   CallEnter) &&
         SetMethod(type, of, &kExitMethod,
                   MakeBoundType<kExitAt>("telltale._probe.SpanExit", &kExitMethod), kExitAt,
                   CallExit);
}

PyMethodDef kMethods[] = {
    {"__reduce__", Reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_methods, kMethods},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(Call)},
    {0, nullptr},
};

PyType_Spec kSpec = {"telltale._probe.Span", sizeof(SpanObject), 0,
                     static_cast<unsigned>(Py_TPFLAGS_DEFAULT), kSlots};

}  // namespace

PyObject* MakeSpanType() {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type != nullptr && !SetMethods(type)) {
    Py_DECREF(type);
    return nullptr;
  }
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
