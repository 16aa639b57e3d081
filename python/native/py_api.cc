// SPDX-License-Identifier: Apache-2.0
#include "py_api.h"

#include <dlfcn.h>

namespace telltale::native {
namespace {

// PyObject_Vectorcall (a function from 3.11 on); before, the one of Python functions, which every
// callable that we wrap is.
Vectorcall g_object_vectorcall = nullptr;
Vectorcall g_function_vectorcall = nullptr;
PyTypeObject* g_function_type = nullptr;

PyObject* CallSlow(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                   PyObject* kwnames) {
  const Py_ssize_t count = static_cast<Py_ssize_t>(ArgCount(nargsf));
  Ref tuple(PyTuple_New(count));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SetItem(tuple.get(), i, args[i]);
  }
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_Size(kwnames);
  if (named == 0) return PyObject_Call(callable, tuple.get(), nullptr);
  Ref dict(PyDict_New());
  if (!dict) return nullptr;
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (PyDict_SetItem(dict.get(), PyTuple_GetItem(kwnames, i), args[count + i]) != 0) {
      return nullptr;
    }
  }
  return PyObject_Call(callable, tuple.get(), dict.get());
}

}  // namespace

void InitCallVector() {
  if (g_function_type != nullptr) return;
  g_object_vectorcall = reinterpret_cast<Vectorcall>(dlsym(RTLD_DEFAULT, "PyObject_Vectorcall"));
  g_function_vectorcall =
      reinterpret_cast<Vectorcall>(dlsym(RTLD_DEFAULT, "_PyFunction_Vectorcall"));
  Ref types(PyImport_ImportModule("types"));
  if (!types) return;
  g_function_type =
      reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(types.get(), "FunctionType"));
}

[[gnu::hot]] PyObject* CallVector(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                                  PyObject* kwnames) {
  if (g_object_vectorcall != nullptr) [[likely]] {
    return g_object_vectorcall(callable, args, nargsf, kwnames);
  }
  if (g_function_vectorcall != nullptr && Py_TYPE(callable) == g_function_type) {
    return g_function_vectorcall(callable, args, nargsf, kwnames);
  }
  return CallSlow(callable, args, nargsf, kwnames);
}

bool FillSlots(const char* function, std::span<const Slot> slots, PyObject* kwargs) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (kwargs != nullptr && PyDict_Next(kwargs, &position, &key, &value) != 0) {
    const Slot* found = nullptr;
    for (const Slot& slot : slots) {
      if (PyUnicode_CompareWithASCIIString(key, slot.name) == 0) found = &slot;
    }
    if (found == nullptr ||
        (found->kind != 0 && (PyType_GetFlags(Py_TYPE(value)) & found->kind) == 0)) {
      PyErr_Format(PyExc_TypeError, "_probe.%s: cannot take %R", function, key);
      return false;
    }
    Py_INCREF(value);
    PyObject* old = *found->object;
    *found->object = value == Py_None ? nullptr : value;
    Py_XDECREF(old);
  }
  return true;
}

}  // namespace telltale::native
