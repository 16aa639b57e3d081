// SPDX-License-Identifier: Apache-2.0
//
// The functions of telltale._probe that give tensors and drive the step machine: what adapters of
// frameworks without a native hook, and telltale.save_tensor, are made of.
#pragma once

#include "py_api.h"
#include "telltale/probe.h"

namespace telltale::native {

/// Looks up the buffer protocol. Once, when the module is made.
void InitCapture();
/// Adds the functions to the module. False with an exception set.
bool AddCaptureFunctions(PyObject* module);
/// Records an array of about `bytes` bytes, without the GIL where they are many. The caller keeps
/// its memory. Returns the bits of `take` that found room.
std::uint32_t Give(std::uint32_t tensor, const tt_array& array, std::uint64_t bytes,
                   std::uint32_t take, std::int64_t step, int mode);
/// The ids of tensors belong to another process, or to none.
void ForgetTensors();

}  // namespace telltale::native
