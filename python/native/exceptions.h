// SPDX-License-Identifier: Apache-2.0
//
// Learns of exceptions that end something, without a frame, a function or a word of ours where the
// program or its user could see it.
//
// Uncaught ones come by the interpreter's audit event sys.excepthook, which is raised whatever the
// program has put in place of sys.excepthook, and leaves that as it is. Those that a library
// catches for good (a thread's end, a worker's) come by a hook around the function that it then
// calls.
#pragma once

#include "hook.h"

namespace telltale::native {

/// Calls the original while an exception is being handled; tells `tell` that exception before.
PyObject* Caught(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames);
/// Calls the original, which makes such a function.
PyObject* MakesCaught(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames);

/// on_uncaught(callback): the callback is called with each uncaught exception, before that is
/// printed. False where this interpreter does not tell.
PyObject* OnUncaught(PyObject*, PyObject* callback);

}  // namespace telltale::native
