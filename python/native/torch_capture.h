// SPDX-License-Identifier: Apache-2.0
//
// The calls of modules, losses and optimizers that the adapter is told of while the plan asks for
// what they take, give and change. Everything here runs with the GIL held.
#pragma once

#include "py_api.h"
#include "state.h"

namespace telltale::native {

/// Functions of telltale._probe; ends with an empty one.
extern PyMethodDef g_torch_capture_functions[];
/// Interns the names used here and beneath, once. False with an exception set.
bool InitTorchCapture();

/// While it lives, torch.compile leaves the frames of our own Python alone: its callback, which
/// stands on the thread that runs compiled code, is put aside.
class OutsideCompiler {
 public:
  OutsideCompiler();
  ~OutsideCompiler();
  OutsideCompiler(const OutsideCompiler&) = delete;
  OutsideCompiler& operator=(const OutsideCompiler&) = delete;

 private:
  PyObject* prior_ = nullptr;  ///< Owned; null where nothing was put aside.
};

/// Whether the plan asks for anything at the open step.
inline bool AnythingDue() { return tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) != 0; }

/// The arguments of a hooked call, as its vectorcall has them.
struct CallArguments {
  PyObject* const* args;
  std::size_t nargsf;
  PyObject* kwnames;
};

/// What the adapter wants to be told of the calls inside a root's forward; bits.
inline constexpr int kWatchResults = 1;
inline constexpr int kWatchInputs = 2;

/// A root's forward begins: what the adapter wants to be told of it.
[[gnu::cold]] int WatchForward(PyObject* module, bool train);
/// A module inside a watched forward, or its root, is about to be called.
[[gnu::cold]] void TellInputs(const CallArguments& call);
/// A module inside a watched forward was called (its root is told last).
[[gnu::cold]] void TellModule(const CallArguments& call, PyObject* result);
/// A loss module was called that belongs to no root.
[[gnu::cold]] void TellLossModule(const CallArguments& call, PyObject* result);
/// A functional loss was called; `function`: what torch itself calls it.
[[gnu::cold]] void TellLossFunction(PyObject* function, const CallArguments& call,
                                    PyObject* result);
/// Whether the adapter names modules; the name of one, a str, or null (new reference).
bool NamesParts();
[[gnu::cold]] PyObject* PartName(PyObject* module);
/// Whether functional losses are to be told.
bool WantsLossFunctions();
/// A backward pass begins from this loss (as it was before it was scaled).
[[gnu::cold]] void TellLoss(PyObject* tensor);
/// The closure that an optimizer is given makes its gradients: a callable that calls it and then
/// has the adapter told of the optimizer, the first time. Null without an exception where there is
/// no closure. `*position`: its place among the arguments.
[[gnu::cold]] PyObject* WatchClosure(const CallArguments& call, std::size_t* position);
/// An optimizer is about to change its parameters.
[[gnu::cold]] void TellOptimizer(PyObject* optimizer);

}  // namespace telltale::native
