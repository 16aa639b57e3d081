// SPDX-License-Identifier: Apache-2.0
#include "exceptions.h"

#include <dlfcn.h>

#include <cstring>

#include "state.h"
#include "torch_capture.h"

namespace telltale::native {
namespace {

// Of the stable ABI only from 3.13 on; there since 3.8.
using AuditHook = int (*)(const char* event, PyObject* args, void* data);
using AddAuditHook = int (*)(AuditHook hook, void* data);

PyObject* g_uncaught = nullptr;  ///< Owned.
PyInterpreterState* g_interpreter = nullptr;
/// The hook has been called. One that another hook refuses is not there, though adding it succeeds.
bool g_heard = false;

void Tell(PyObject* callback, PyObject* exception) {
  ErrorGuard guard;
  const OutsideCompiler outside;
  Ref result(PyObject_CallFunctionObjArgs(callback, exception, nullptr));
  // What it may fail of is only told: the exception takes its way without it.
  if (!result) DropError();
}

int Audit(const char* event, PyObject* args, void*) {
  g_heard = true;
  if (event[0] != 's' || std::strcmp(event, "sys.excepthook") != 0) return 0;
  constexpr Py_ssize_t kValue = 2;  // Behind the hook and the type.
  if (g_uncaught == nullptr || PyInterpreterState_Get() != g_interpreter ||
      PyTuple_Check(args) == 0 || PyTuple_Size(args) <= kValue) {
    return 0;
  }
  PyObject* exception = PyTuple_GetItem(args, kValue);
  if (exception != nullptr && PyExceptionInstance_Check(exception)) Tell(g_uncaught, exception);
  return 0;
}

}  // namespace

PyObject* Caught(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* tell = reinterpret_cast<HookObject*>(self)->tell;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  const Ref exception(value);
  if (tell != nullptr && value != nullptr && PyExceptionInstance_Check(value)) Tell(tell, value);
  return CallOriginal(self, args, nargsf, kwnames);
}

PyObject* MakesCaught(PyObject* self, PyObject* const* args, std::size_t nargsf,
                      PyObject* kwnames) {
  PyObject* made = CallOriginal(self, args, nargsf, kwnames);
  PyObject* tell = reinterpret_cast<HookObject*>(self)->tell;
  if (made == nullptr || tell == nullptr) return made;
  PyObject* hook = PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(self)), "OiOKO", made,
                                         static_cast<int>(HookKind::kCaught), Py_None, 0ULL, tell);
  if (hook == nullptr) {
    DropError();
    return made;
  }
  Py_DECREF(made);
  return hook;
}

PyObject* OnUncaught(PyObject*, PyObject* callback) {
  const auto add = reinterpret_cast<AddAuditHook>(::dlsym(RTLD_DEFAULT, "PySys_AddAuditHook"));
  const bool first = g_uncaught == nullptr;
  Py_INCREF(callback);
  PyObject* before = g_uncaught;
  g_uncaught = callback;
  Py_XDECREF(before);
  if (!first) return PyBool_FromLong(g_heard ? 1 : 0);
  g_interpreter = PyInterpreterState_Get();
  // Who audits the program may refuse it.
  const bool added = add != nullptr && add(Audit, nullptr) == 0;
  PyErr_Clear();
  return PyBool_FromLong(added ? 1 : 0);
}

}  // namespace telltale::native
