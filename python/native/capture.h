// SPDX-License-Identifier: Apache-2.0
//
// The functions of telltale._probe that give tensors and drive the step machine: what adapters of
// frameworks without a native hook, and telltale.save_tensor, are made of.
#pragma once

#include "py_api.h"

namespace telltale::native {

/// Looks up the buffer protocol. Once, when the module is made.
void InitCapture();
/// Adds the functions to the module. False with an exception set.
bool AddCaptureFunctions(PyObject* module);
/// The ids of tensors belong to another process, or to none.
void ForgetTensors();

}  // namespace telltale::native
