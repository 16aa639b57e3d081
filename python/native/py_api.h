// SPDX-License-Identifier: Apache-2.0
//
// The part of CPython that the binding uses: the stable ABI of 3.9, so that one file serves 3.9 to
// 3.13, plus the vectorcall protocol, whose layout has been stable since 3.8 but which the limited
// headers only show from 3.12.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <span>

#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

namespace telltale::native {

// Flags and types hidden by the limited headers (values are part of the ABI).
constexpr unsigned long kTypeMethodDescriptor = 1UL << 17;
constexpr unsigned long kTypeHaveVectorcall = 1UL << 11;
constexpr std::size_t kArgumentsOffset = std::size_t{1} << (8 * sizeof(std::size_t) - 1);

using Vectorcall = PyObject* (*)(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                                 PyObject* kwnames);
using FastFunction = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t nargs);

inline std::size_t ArgCount(std::size_t nargsf) { return nargsf & ~kArgumentsOffset; }

/// Calls `callable` with the vectorcall convention, as fast as the running interpreter allows.
PyObject* CallVector(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                     PyObject* kwnames);
/// Looks up what CallVector uses. Once, when the module is made.
void InitCallVector();

/// An owned reference, dropped at the end of the scope.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

/// A place for what the adapter gives by a name.
struct Slot {
  const char* name;
  PyObject** object;       ///< Owned; null for None.
  unsigned long kind = 0;  ///< A Py_TPFLAGS_..._SUBCLASS that its type must have; 0: any, or None.
};
inline PyObject** AnyObject(PyTypeObject** type) { return reinterpret_cast<PyObject**>(type); }

/// Fills those that `kwargs` (may be null) names. False with an exception set where one is not
/// there, or of another kind; those before it are filled. `function`: as Python calls it.
bool FillSlots(const char* function, std::span<const Slot> slots, PyObject* kwargs);

/// Keeps the user's pending exception, if any, out of the way of our own calls.
class ErrorGuard {
 public:
  ErrorGuard() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~ErrorGuard() { PyErr_Restore(type_, value_, traceback_); }
  ErrorGuard(const ErrorGuard&) = delete;
  ErrorGuard& operator=(const ErrorGuard&) = delete;

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

}  // namespace telltale::native
