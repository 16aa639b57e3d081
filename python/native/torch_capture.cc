// SPDX-License-Identifier: Apache-2.0
#include "torch_capture.h"

#include "collection.h"
#include "seen_cache.h"
#include "torch_gradients.h"
#include "torch_optimizer.h"
#include "torch_read.h"

namespace telltale::native {
namespace {

/// What the adapter gave us, all owned; null until then.
struct Torch {
  PyObject* on_forward = nullptr;   ///< (root, train: bool) -> kWatch bits
  PyObject* on_inputs = nullptr;    ///< (module, args, kwargs or None, None) before the call
  PyObject* on_module = nullptr;    ///< (module, args, kwargs or None, result)
  PyObject* on_part = nullptr;      ///< (module) -> its path in the module tree
  PyObject* on_loss = nullptr;      ///< (loss module, args, kwargs or None, result)
  PyObject* on_function = nullptr;  ///< (function, args, kwargs or None, result)
  PyObject* on_backward = nullptr;  ///< (tensor)
  PyObject* on_closure = nullptr;   ///< (optimizer, closure) -> callable that calls tell_optimizer
  PyObject* on_refused = nullptr;   ///< (optimizer, what RecordKept refused)
  PyObject* mode_enabled = nullptr;
  PyObject* set_eval_frame = nullptr;
};
Torch g_torch;

PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

// ---- what the plan asks for ----

constinit Collection g_activations{"activations"};
constinit Collection g_inputs{"inputs"};
constinit Collection g_labels{"labels"};
constinit Collection g_losses{"losses"};
constinit Collection g_outputs{"outputs"};
constinit Collection g_predictions{"predictions"};

/// Whether anything is asked for that a loss takes or gives.
bool WantsOfLosses() { return g_losses.Wanted() || g_labels.Wanted() || g_predictions.Wanted(); }

/// Roots whose training forward was told since g_told_epoch.
SeenCache g_told_roots;
std::uint32_t g_told_epoch = 0;

/// Whether a root was told before; it counts as told from now on.
bool WasTold(PyObject* root) {
  if (g_told_epoch != g_epoch) {
    g_told_roots.Clear();
    g_told_epoch = g_epoch;
  }
  return !g_told_roots.Insert(root);
}

// ---- functions of the module ----

/// record_torch(tensor, id, take[, step, mode]) -> 0 or why it was refused.
PyObject* RecordTorch(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 3 && nargs != 5) {
    PyErr_SetString(PyExc_TypeError, "_probe.record_torch takes 3 or 5 arguments");
    return nullptr;
  }
  const auto id = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[1]));
  const auto take = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[2]));
  Moment moment;
  if (nargs == 5) {
    if (args[3] != Py_None) moment.step = PyLong_AsLongLong(args[3]);
    moment.mode = static_cast<int>(PyLong_AsLong(args[4]));
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  Refusal refusal = Refusal::kNone;
  if (g_recording == Recording::kOn && id != 0) {
    refusal = RecordTensor(args[0], id, take, moment, nullptr);
  }
  return PyLong_FromLong(static_cast<long>(refusal));
}

/// tell_optimizer(optimizer): what is due of it is recorded now.
PyObject* TellOptimizerFunction(PyObject*, PyObject* optimizer) {
  if (g_recording == Recording::kOn && AnythingDue()) TellOptimizer(optimizer);
  return None();
}

/// configure_torch(**values): what the adapter gives us; see Torch and TorchFacts.
PyObject* ConfigureTorch(PyObject*, PyObject*, PyObject* kwargs) {
  Torch& t = g_torch;
  TorchFacts& facts = g_torch_facts;
  const Slot slots[] = {
      {"types", &facts.types, Py_TPFLAGS_TUPLE_SUBCLASS},
      {"dtypes", &facts.dtypes, Py_TPFLAGS_DICT_SUBCLASS},
      {"strided", &facts.strided},
      {"storage", &facts.storage},
      {"on_forward", &t.on_forward},
      {"on_inputs", &t.on_inputs},
      {"on_module", &t.on_module},
      {"on_part", &t.on_part},
      {"on_loss", &t.on_loss},
      {"on_function", &t.on_function},
      {"on_backward", &t.on_backward},
      {"on_closure", &t.on_closure},
      {"on_refused", &t.on_refused},
      {"mode_enabled", &t.mode_enabled},
      {"set_eval_frame", &t.set_eval_frame},
  };
  if (!FillSlots("configure_torch", slots, kwargs)) return nullptr;
  TorchFactsChanged();
  SetModeEnabled(t.mode_enabled);
  return None();
}

/// Calls a callback of the adapter outside of torch.compile; what it took, apart from what the
/// records inside account for themselves, is ours. A failure of it disables us. May return null.
PyObject* Ask(PyObject* callback, const char* where, PyObject* const (&arguments)[4]) {
  ErrorGuard guard;
  const OwnTime own;
  PyObject* answer = nullptr;
  {
    const OutsideCompiler outside;
    answer = PyObject_CallFunctionObjArgs(callback, arguments[0], arguments[1], arguments[2],
                                          arguments[3], nullptr);
    if (answer == nullptr) DisableByException(where);
  }
  own.Account();
  return answer;
}

/// What is due of an optimizer is recorded without the adapter, where it has said so.
bool DoneWithoutAdapter(PyObject* optimizer) {
  PyObject* refused = nullptr;
  bool done = false;
  {
    ErrorGuard guard;
    const OwnTime own;
    const OutsideCompiler outside;
    done = RecordKept(optimizer, &refused);
    own.Account();
  }
  const Ref rest(refused);
  if (refused != nullptr && g_torch.on_refused != nullptr) {
    const Ref seen(Ask(g_torch.on_refused, "on_refused", {optimizer, refused, nullptr, nullptr}));
  }
  return done;
}

/// Hands a call to the adapter: (subject, positional arguments from `first` on, named ones,
/// result).
void TellCall(PyObject* callback, const char* where, PyObject* subject, const CallArguments& call,
              std::size_t first, PyObject* result) {
  if (callback == nullptr || g_recording != Recording::kOn) return;
  const std::size_t count = ArgCount(call.nargsf);
  if (count < first) return;
  const Ref positional(PyTuple_New(static_cast<Py_ssize_t>(count - first)));
  const Py_ssize_t named_count = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  const Ref named(named_count > 0 ? PyDict_New() : nullptr);
  bool complete = positional && (named_count == 0 || named);
  for (std::size_t i = first; complete && i < count; ++i) {
    Py_INCREF(call.args[i]);
    PyTuple_SetItem(positional.get(), static_cast<Py_ssize_t>(i - first), call.args[i]);
  }
  for (Py_ssize_t i = 0; complete && i < named_count; ++i) {
    complete = PyDict_SetItem(named.get(), PyTuple_GetItem(call.kwnames, i),
                              call.args[count + static_cast<std::size_t>(i)]) == 0;
  }
  if (!complete) {
    DropError();
    return;
  }
  const Ref done(
      Ask(callback, where, {subject, positional.get(), named ? named.get() : Py_None, result}));
}

PyCFunction Fast(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

OutsideCompiler::OutsideCompiler() {
  if (g_torch.set_eval_frame == nullptr) return;
  prior_ = PyObject_CallFunctionObjArgs(g_torch.set_eval_frame, Py_None, nullptr);
  if (prior_ == nullptr) {
    DropError();
  } else if (prior_ == Py_None) {
    Py_CLEAR(prior_);
  }
}

OutsideCompiler::~OutsideCompiler() {
  if (prior_ == nullptr) return;
  ErrorGuard guard;
  const Ref done(PyObject_CallFunctionObjArgs(g_torch.set_eval_frame, prior_, nullptr));
  if (!done) DropError();
  Py_DECREF(prior_);
}

int WatchForward(PyObject* module, bool train) {
  if (g_torch.on_forward == nullptr) return 0;
  // Of a training nothing else is to be done at a root's forward; an evaluation's parameters are.
  if (train && WasTold(module) && !g_outputs.Wanted() && !g_activations.Wanted() &&
      !g_inputs.Wanted() && !WantsOfLosses()) {
    return 0;
  }
  const Ref answer(Ask(g_torch.on_forward, "on_forward",
                       {module, train ? Py_True : Py_False, nullptr, nullptr}));
  const long watch = answer ? PyLong_AsLong(answer.get()) : 0;
  if (watch == -1) DropError();
  return watch > 0 ? static_cast<int>(watch) : 0;
}

bool NamesParts() { return g_torch.on_part != nullptr; }

PyObject* PartName(PyObject* module) {
  return Ask(g_torch.on_part, "on_part", {module, nullptr, nullptr, nullptr});
}

void TellInputs(const CallArguments& call) {
  if (ArgCount(call.nargsf) == 0) return;
  TellCall(g_torch.on_inputs, "on_inputs", call.args[0], call, 1, Py_None);
}

void TellModule(const CallArguments& call, PyObject* result) {
  if (ArgCount(call.nargsf) == 0) return;
  TellCall(g_torch.on_module, "on_module", call.args[0], call, 1, result);
}

void TellLossModule(const CallArguments& call, PyObject* result) {
  if (ArgCount(call.nargsf) == 0 || !WantsOfLosses()) return;
  TellCall(g_torch.on_loss, "on_loss", call.args[0], call, 1, result);
}

void TellLossFunction(PyObject* function, const CallArguments& call, PyObject* result) {
  if (!WantsOfLosses()) return;
  TellCall(g_torch.on_function, "on_function", function, call, 0, result);
}

bool WantsLossFunctions() { return g_torch.on_function != nullptr; }

void TellLoss(PyObject* tensor) {
  if (g_torch.on_backward == nullptr || !g_losses.Wanted()) return;
  const Ref done(Ask(g_torch.on_backward, "on_backward", {tensor, nullptr, nullptr, nullptr}));
}

PyObject* WatchClosure(const CallArguments& call, std::size_t* position) {
  const std::size_t count = ArgCount(call.nargsf);
  const Py_ssize_t named = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  std::size_t at = 0;  // That of the optimizer itself.
  if (count > 1) at = 1;
  for (Py_ssize_t i = 0; at == 0 && i < named; ++i) {
    PyObject* name = PyTuple_GetItem(call.kwnames, i);
    if (PyUnicode_CompareWithASCIIString(name, "closure") == 0) {
      at = count + static_cast<std::size_t>(i);
    }
  }
  if (at == 0 || g_torch.on_closure == nullptr || PyCallable_Check(call.args[at]) == 0) {
    return nullptr;
  }
  *position = at;
  PyObject* watched =
      Ask(g_torch.on_closure, "on_closure", {call.args[0], call.args[at], nullptr, nullptr});
  if (watched != nullptr && PyCallable_Check(watched) == 0) Py_CLEAR(watched);
  return watched;
}

void TellOptimizer(PyObject* optimizer) {
  if (g_adapter.on_stats == nullptr) return;
  if (DoneWithoutAdapter(optimizer)) return;
  const Ref done(Ask(g_adapter.on_stats, "on_stats", {optimizer, nullptr, nullptr, nullptr}));
}

PyMethodDef g_torch_capture_functions[] = {
    {"record_torch", Fast(RecordTorch), METH_FASTCALL,
     "record_torch(tensor, id, take[, step, mode]) -> 0, or why it was refused"},
    {"record_parameters", Fast(RecordParameters), METH_FASTCALL,
     "record_parameters(parameters, table) -> None, False or what was refused"},
    {"keep_optimizer", Fast(KeepOptimizer), METH_FASTCALL,
     "keep_optimizer(optimizer, tables): on_stats need not be told of it while nothing changes"},
    {"forget_optimizers", ForgetOptimizers, METH_NOARGS,
     "forget_optimizers(): on_stats is told of each again"},
    {"watch_optimizer", WatchOptimizer, METH_O, "watch_optimizer(optimizer): it may step later"},
    {"answer_gradient", AnswerGradient, METH_VARARGS, "answer_gradient(ticket, stays)"},
    {"tell_optimizer", TellOptimizerFunction, METH_O, "tell_optimizer(optimizer)"},
    {"configure_torch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ConfigureTorch)),
     METH_VARARGS | METH_KEYWORDS, "configure_torch(**values)"},
    {nullptr, nullptr, 0, nullptr},
};

bool InitTorchCapture() { return InitTorchRead() && InitTorchOptimizer() && InitTorchGradients(); }

}  // namespace telltale::native
