// SPDX-License-Identifier: Apache-2.0
//
// telltale.span(name): a context manager, also a decorator, that records one span each time.
#pragma once

#include "py_api.h"

namespace telltale::native {

PyObject* MakeSpanType();
/// span(name) -> Span, without the detour through the type's constructor.
PyObject* SpanFunction(PyObject* module, PyObject* const* args, Py_ssize_t nargs,
                       PyObject* kwnames);

}  // namespace telltale::native
