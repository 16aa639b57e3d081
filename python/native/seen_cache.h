// SPDX-License-Identifier: Apache-2.0
//
// Which of the framework's objects were seen lately, told in the time of a comparison.
#pragma once

#include <array>
#include <cstdint>

#include "py_api.h"
#include "state.h"

namespace telltale::native {

/// By weak references: another object at the address of one that is gone is a new one. A miss only
/// costs a call of the adapter, which keeps the true set. Used with the GIL held; lives as long as
/// the process.
class SeenCache {
 public:
  /// False: it was seen, and nothing with its place in the table since.
  bool Insert(PyObject* object) {
    PyObject*& slot = slots_[(reinterpret_cast<std::uintptr_t>(object) >> 4) % slots_.size()];
    // A borrowed reference, None where the object is gone: only compared.
    if (slot != nullptr && PyWeakref_GetObject(slot) == object) return false;
    PyObject* reference = PyWeakref_NewRef(object, nullptr);
    if (reference == nullptr) {
      DropError();  // One that takes none is new each time.
      return true;
    }
    PyObject* old = slot;
    slot = reference;
    Py_XDECREF(old);
    return true;
  }

  void Clear() {
    for (PyObject*& slot : slots_) {
      Py_XDECREF(slot);
      slot = nullptr;
    }
  }

 private:
  std::array<PyObject*, 61> slots_{};  ///< Owned weak references, or null.
};

}  // namespace telltale::native
