// SPDX-License-Identifier: Apache-2.0
//
// Whether the calling thread has a profile function, also one of a C profiler (yappi) that gave
// PyEval_SetProfile no object: sys.getprofile() shows only the object.
#pragma once

#include "py_api.h"

namespace telltale::native {

/// has_profile_function() -> bool, None where this interpreter's threads are not known: those from
/// 3.12 on are asked by sys.monitoring.
PyObject* HasProfileFunction(PyObject* module, PyObject* nothing);

}  // namespace telltale::native
