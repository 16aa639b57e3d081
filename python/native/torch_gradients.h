// SPDX-License-Identifier: Apache-2.0
//
// What becomes of gradients: whether a program clears them between an optimizer's step and the next
// backward, whether it throws them away without a step, and where it uses them itself. Looks at a
// few parameters, at the first steps, at each 16th and later once in 0.2 s (look_schedule.h). No
// reference to a tensor is kept.
//
// Everything here runs with the GIL held, leaves no exception, and keeps a pending one.
#pragma once

#include "py_api.h"

namespace telltale::native {

/// Interns the names used here, once. False with an exception set.
bool InitTorchGradients();
/// This is a forked child: what was seen so far is its parent's.
void ForgetGradients();

/// watch_optimizer(optimizer): there is one, which may step later.
PyObject* WatchOptimizer(PyObject*, PyObject* optimizer);

/// answer_gradient(ticket, stays): what on_gradient was asked; whether the gradient is not zero.
PyObject* AnswerGradient(PyObject*, PyObject* args);

/// How often an optimizer has stepped; false where that is not known.
bool StepsOf(PyObject* optimizer, std::uint32_t* steps);

/// An optimizer begins its step.
void OptimizerSteps();
/// It has stepped: gradients are as they were used.
void OptimizerStepped(PyObject* optimizer);
/// An optimizer or a module is about to clear the gradients that it has.
void GradientsAreCleared(PyObject* owner);

void BackwardBegins();
void BackwardEnded();
/// A root's forward begins, with these arguments: the module first. Returns whether the newest root
/// is another than before.
bool RootForwardBegins(PyObject* const* args, std::size_t count);
/// Whether it is the root that was called last, of those before the first step of an optimizer.
bool IsNewestRoot(PyObject* module);
/// A batch is about to be fetched.
void FetchBegins();

}  // namespace telltale::native
