// SPDX-License-Identifier: Apache-2.0
//
// Parameters and gradients of optimizers, by tables that the adapter makes of them (parameters.py):
// by its call at first, then, while all that it looks at stays as it was, without it, for its code
// is cold when a step of the training has run.
//
// Everything here runs with the GIL held; it is released while a large tensor is read.
#pragma once

#include <cstdint>

#include "py_api.h"

namespace telltale::native {

/// What an optimizer is called for the probe.
inline std::uint64_t OptimizerId(const PyObject* optimizer) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(optimizer));
}

/// record_parameters(parameters: list, table: bytearray): records what is due of each parameter and
/// its gradient. None: done; False: the table is not of these parameters, nothing was recorded; a
/// list of (position, is gradient, why, take): what the caller has to see to.
PyObject* RecordParameters(PyObject*, PyObject* const* args, Py_ssize_t nargs);
/// keep_optimizer(optimizer, tables: tuple of one bytearray for each group): what the adapter does
/// of this optimizer is no more than RecordKept does, until it says forget_optimizers().
PyObject* KeepOptimizer(PyObject*, PyObject* const* args, Py_ssize_t nargs);
/// forget_optimizers()
PyObject* ForgetOptimizers(PyObject*, PyObject*);

/// Records what is due of an optimizer that is kept, where groups, parameters and thread are those
/// of then, no state of it is wanted, its gradients are not scaled and no mode of the user's is on.
/// False: nothing was recorded, the adapter has to be told. `*refused`: null, or a list of (group,
/// what record_parameters gives) that the adapter has to see to; new reference. Leaves no
/// exception.
bool RecordKept(PyObject* optimizer, PyObject** refused);
/// () -> bool: whether a mode of the user's sees what we call; null: there is none.
void SetModeEnabled(PyObject* callable);
/// A mode of the user's sees what we call: nothing of torch's may be called.
bool ModeEnabled();
/// Interns the names used here, once. False with an exception set.
bool InitTorchOptimizer();

}  // namespace telltale::native
