// SPDX-License-Identifier: Apache-2.0
//
// Asks objects of one class for an attribute without looking it up each time.
#pragma once

#include "py_api.h"
#include "state.h"

namespace telltale::native {

/// An attribute of tensors, looked up in their class once and not at each tensor: what is read is
/// of torch's own classes, where it is the same for all.
class Attribute {
 public:
  explicit constexpr Attribute(const char* name) : text_(name) {}

  /// False with an exception set.
  bool Init() { return Rename(PyUnicode_InternFromString(text_)); }
  /// Takes the reference. False for null.
  bool Rename(PyObject* name) {
    if (name == nullptr) return false;
    Py_XDECREF(name_);
    name_ = name;
    return true;
  }
  /// `type`: the class, or null.
  void Find(PyObject* type) {
    PyObject* found = type != nullptr ? PyObject_GetAttr(type, name_) : nullptr;
    get_ = nullptr;
    if (found != nullptr) {
      // Before 3.10 it tells nothing of the interpreter's own types, with an exception.
      get_ = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(found), Py_tp_descr_get));
    }
    DropError();
    PyObject* old = found_;
    found_ = found;
    Py_XDECREF(old);
  }

  /// tensor.name
  PyObject* Get(PyObject* tensor) const {
    if (get_ == nullptr) return PyObject_GetAttr(tensor, name_);
    return get_(found_, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
  }
  /// tensor.name()
  PyObject* Call(PyObject* tensor) const {
    if (found_ == nullptr) return PyObject_CallMethodObjArgs(tensor, name_, nullptr);
    return CallVector(found_, &tensor, 1, nullptr);
  }

 private:
  const char* text_;
  PyObject* name_ = nullptr;   ///< Owned.
  PyObject* found_ = nullptr;  ///< Owned: what the class has; null: not looked up.
  descrgetfunc get_ = nullptr;
};

}  // namespace telltale::native
