// SPDX-License-Identifier: Apache-2.0
//
// When the adapter looks at a training loop: at its models' modes, its optimizers' parameters, what
// its losses are made of, its schedulers. At the first steps and then seldom, so that a step costs
// next to nothing more.
//
// Everything here runs with the GIL held, and keeps a pending exception.
#pragma once

#include "py_api.h"
#include "torch_capture.h"

namespace telltale::native {

extern PyMethodDef g_torch_loop_functions[];
/// This is a forked child: what was seen so far is its parent's.
void ForgetLoop();

/// A root's forward begins, with gradients.
void LoopForward(PyObject* module);
/// It has ended, with this result.
void LoopForwardEnded(PyObject* result);
/// A backward begins. `scaled`: from what a gradient scaler gave.
void LoopBackward(const CallArguments& call, bool scaled);
/// A backward begins from this tensor, whose value is NaN or Inf. The adapter looks at the first.
void LoopNotFinite(PyObject* tensor);
/// The loss of an evaluation was computed, by a function or a module.
void LoopEvalLoss(PyObject* called, PyObject* input, PyObject* target);
/// An optimizer begins its step, its gradients made.
void LoopOptimizer(PyObject* optimizer);
/// A scheduler has stepped.
void LoopSchedule(const CallArguments& call);

}  // namespace telltale::native
