// SPDX-License-Identifier: Apache-2.0
//
// What each kind of hook records. Every function calls the original once, between begin and end of
// its record, and acts only at the outermost call of its kind on the thread.
//
// What each step runs is marked hot, here and in the probe, and what few steps run cold: the linker
// lays the first together and the second apart. A step of the framework has been through the
// caches, so a hook's time is that of the lines of code and data that it touches.
#include <algorithm>
#include <array>
#include <cmath>

#include "exceptions.h"
#include "fetches.h"
#include "hook.h"
#include "items.h"
#include "module_spans.h"
#include "seen_cache.h"
#include "spans.h"
#include "state.h"
#include "torch_batches.h"
#include "torch_capture.h"
#include "torch_gradients.h"
#include "torch_loop.h"
#include "torch_optimizer.h"
#include "torch_read.h"
#include "values.h"
#include "windows.h"

namespace telltale::native {
namespace {

PyObject* g_training = nullptr;
PyObject* g_enabled = nullptr;
PyObject* g_is_cpu = nullptr;
PyObject* g_growth_interval = nullptr;
PyObject* g_device_to_host = nullptr;

// The newest result of GradScaler.scale (by weak reference: its graph must not live longer for us)
// and the loss it was made from. Both owned, or both null.
PyObject* g_scaled = nullptr;
PyObject* g_unscaled = nullptr;
// A loss was scaled and the scaler has not stepped since: another tensor that goes backward may be
// made from the scaled one, and its value is no loss.
bool g_scale_pending = false;

/// When the scale of a GradScaler changes.
struct {
  bool skipped = false;  ///< A step was, since it was looked at.
  long long left = 0;    ///< Updates until it grows.
} g_rescale;

SeenCache g_roots;
/// Optimizers that were told of since g_optimizers_epoch: a forked trainer tells of its own.
SeenCache g_optimizers;
std::uint32_t g_optimizers_epoch = 0;

/// Counts a call on the thread's stack.
class Depth {
 public:
  explicit Depth(int* depth) : depth_(depth) { ++*depth_; }
  ~Depth() {
    if (*depth_ > 0) --*depth_;
  }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int* depth_;
};

class ModuleDepth {
 public:
  explicit ModuleDepth(ThreadState* thread) : thread_(thread) { ++thread_->module_depth; }
  ~ModuleDepth() {
    if (--thread_->module_depth < thread_->module_base) {
      thread_->module_base = thread_->module_depth;
    }
  }
  ModuleDepth(const ModuleDepth&) = delete;
  ModuleDepth& operator=(const ModuleDepth&) = delete;

 private:
  ThreadState* thread_;
};

// The newest root forward was no evaluation: a loss that follows one of training is read at its
// backward.
bool g_last_forward_trains = false;
// A loader gave a batch since the newest forward of training.
bool g_fetched = false;
bool g_eval_seen = false;
// The newest root has parameters.
bool g_newest_is_model = false;

[[gnu::hot]] void ForgetScaled() {
  Py_CLEAR(g_scaled);
  Py_CLEAR(g_unscaled);
}

/// True for the tensor itself, never for one that has its address by now.
[[gnu::hot]] bool IsNewestScaled(const PyObject* tensor) {
  if (g_scaled == nullptr) return false;
  Ref scaled(PyObject_CallObject(g_scaled, nullptr));
  if (!scaled) DropError();
  return scaled.get() == tensor;
}

/// What a backward pass from `tensor` says of the loss; true where `*loss` is its value.
[[gnu::hot]] bool TakeLoss(PyObject* tensor, double* loss) {
  if (IsNewestScaled(tensor)) {
    tensor = g_unscaled;
  } else if (g_scale_pending) {
    if (HostScalar(tensor, loss) || IsDeviceScalar(tensor)) Skipped("loss.scaled");
    return false;
  }
  Py_INCREF(tensor);  // Another thread may scale its loss while torch is asked about this one.
  const Ref kept(tensor);
  if (AnythingDue()) TellLoss(tensor);
  if (HostScalar(tensor, loss)) return true;
  if (g_adapter.on_device_loss != nullptr && IsDeviceScalar(tensor)) {
    CallAdapter(g_adapter.on_device_loss, tensor, "on_device_loss");
  }
  return false;
}

bool MaySteps() { return Ready(TT_PROCESS_TRAINER) && !g_worker; }

[[gnu::hot]] bool GradEnabled() {
  if (g_adapter.grad_enabled == nullptr) return true;
  const Ref enabled(CallVector(g_adapter.grad_enabled, nullptr, 0, nullptr));
  if (!enabled) DropError();
  return enabled.get() != Py_False;
}

/// Functional losses inside a loss module are that module's business.
class LossDepth {
 public:
  explicit LossDepth(ThreadState* thread) : thread_(thread) { ++thread_->loss_depth; }
  ~LossDepth() { --thread_->loss_depth; }
  LossDepth(const LossDepth&) = delete;
  LossDepth& operator=(const LossDepth&) = delete;

 private:
  ThreadState* thread_;
};

[[gnu::hot]] bool IsLossModule(PyObject* module) {
  return g_adapter.loss_type != nullptr &&
         PyType_IsSubtype(Py_TYPE(module), g_adapter.loss_type) != 0;
}

/// A loss of an evaluation: it has no backward at which it would be read.
void TakeEvalLoss(PyObject* result) {
  double value = 0;
  if (HostScalar(result, &value)) {
    tt_scalar(g_names.loss, value);
  } else if (g_adapter.on_device_eval != nullptr && IsDeviceScalar(result)) {
    const std::uint64_t begin = tt_now();
    CallAdapter(g_adapter.on_device_eval, result, "on_device_eval");
    tt_account(begin);
  }
}

PyObject* LossForward(PyObject* self, PyObject* const* args, std::size_t nargsf,
                      PyObject* kwnames) {
  const LossDepth depth(&ThisThread());
  tt_phase_begin(TT_PHASE_FORWARD);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  tt_phase_end(TT_PHASE_FORWARD);
  if (result != nullptr && AnythingDue()) TellLossModule({args, nargsf, kwnames}, result);
  // With a gradient it is read at backward; without one it is an evaluation's.
  if (result != nullptr && !g_last_forward_trains && !GradEnabled()) {
    TakeEvalLoss(result);
    if (ArgCount(nargsf) == 3) LoopEvalLoss(args[0], args[1], args[2]);
  }
  return result;
}

/// Says once in a process that its model is an agent's.
[[gnu::cold]] void TellActs() {
  g_acts_untold = false;
  tt_event(tt_name("environment", 11), TT_INFO, 0, nullptr, 0, "{}", 2);
}

/// What a root forward is. Without gradients, and without a batch of a loader's, an agent acts.
tt_mode ModeOf(bool train) {
  if (train) return TT_MODE_TRAIN;
  return g_acts && !g_fetched ? TT_MODE_GLOBAL : TT_MODE_EVAL;
}

/// Whether a module has parameters, of its own or its children's. True where that is not known.
[[gnu::cold]] bool HasParameters(PyObject* module, int depth = 0) {
  static PyObject* const own = PyUnicode_InternFromString("_parameters");
  static PyObject* const children = PyUnicode_InternFromString("_modules");
  constexpr int kDeepest = 32;
  const ErrorGuard guard;
  const Ref parameters(PyObject_GenericGetAttr(module, own));
  const Ref modules(PyObject_GenericGetAttr(module, children));
  if (!parameters || !modules || !PyDict_Check(parameters.get()) || !PyDict_Check(modules.get()) ||
      depth > kDeepest) {
    DropError();
    return true;
  }
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(parameters.get(), &position, &name, &value) != 0) {
    if (value != Py_None) return true;
  }
  position = 0;
  while (PyDict_Next(modules.get(), &position, &name, &value) != 0) {
    if (value != Py_None && HasParameters(value, depth + 1)) return true;
  }
  return false;
}

/// Whether its class is one of torch.nn's own.
[[gnu::cold]] bool IsTorchsOwn(PyObject* module) {
  static PyObject* const attribute = PyUnicode_InternFromString("__module__");
  const ErrorGuard guard;
  const Ref name(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(module)), attribute));
  if (!name) {
    DropError();
    return false;
  }
  static PyObject* const package = PyUnicode_InternFromString("torch.nn.modules.");
  if (!PyUnicode_Check(name.get())) return false;
  const Py_ssize_t starts = PyUnicode_Tailmatch(name.get(), package, 0, PY_SSIZE_T_MAX, -1);
  if (starts < 0) DropError();
  return starts == 1;
}

enum class Gradients { kNone, kUnknown, kSome };

/// Whether gradients go back through a value: through any tensor in it.
[[gnu::cold]] Gradients GradientsThrough(PyObject* value, int depth = 2) {
  constexpr Py_ssize_t kLooked = 8;
  if (Py_TYPE(value) == g_adapter.tensor_type) {
    return RequiresGradient(value) ? Gradients::kSome : Gradients::kNone;
  }
  if (value == Py_None || PyFloat_Check(value) || PyLong_Check(value) || PyUnicode_Check(value)) {
    return Gradients::kNone;
  }
  const bool list = PyList_Check(value) != 0;
  if (depth == 0 || (!list && PyTuple_Check(value) == 0)) return Gradients::kUnknown;
  const Py_ssize_t size = list ? PyList_Size(value) : PyTuple_Size(value);
  Gradients through = size == 0 || size > kLooked ? Gradients::kUnknown : Gradients::kNone;
  for (Py_ssize_t i = 0; i < kLooked; ++i) {
    if (i >= (list ? PyList_Size(value) : PyTuple_Size(value))) break;
    PyObject* each = list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
    Py_INCREF(each);
    const Ref kept(each);
    through = std::max(through, GradientsThrough(each, depth - 1));
  }
  return through;
}

/// A module without parameters whose result no gradient goes back through says nothing of the batch
/// that the training learns from: a transform of all data that is made once.
bool TellsNoBatch(PyObject* module, PyObject* result) {
  if (result == nullptr || ModeEnabled()) return false;
  const ErrorGuard guard;
  return GradientsThrough(result) == Gradients::kNone && !HasParameters(module);
}

/// Whether gradients begin in a module that has no parameters: its weights are not registered.
[[gnu::cold]] bool HasOwnWeights(const CallArguments& call, PyObject* result) {
  if (result == nullptr || ModeEnabled()) return false;
  const ErrorGuard guard;
  if (GradientsThrough(result) != Gradients::kSome) return false;
  const std::size_t named =
      call.kwnames == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(call.kwnames));
  for (std::size_t i = 1; i < ArgCount(call.nargsf) + named; ++i) {
    if (GradientsThrough(call.args[i]) == Gradients::kSome) return false;
  }
  return true;
}

/// A module without weights that is called by itself is no model, and no step: a metric in an
/// evaluation, an activation that the program calls between layers. With gradients a model of the
/// user's own may still be one that has not registered its weights.
[[gnu::hot]] PyObject* RootForward(ThreadState* thread, PyObject* self, PyObject* const* args,
                                   std::size_t nargsf, PyObject* kwnames) {
  const std::size_t count = ArgCount(nargsf);
  PyObject* module = count > 0 ? args[0] : nullptr;
  const bool steps = count > 0 && MaySteps();
  const bool loss = steps && IsLossModule(module);
  const bool gradients = steps && !loss && GradEnabled();
  const bool train = gradients && IsTrueAttr(module, g_training);
  const bool newest = steps && !loss && IsNewestRoot(module) && g_newest_is_model;
  // What such a module calls may be a model.
  if (steps && !loss && !newest && (!train || IsTorchsOwn(module)) && !HasParameters(module)) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  ModuleDepth depth(thread);
  if (!steps) return CallOriginal(self, args, nargsf, kwnames);
  if (loss) return LossForward(self, args, nargsf, kwnames);
  if (g_roots.Insert(module)) [[unlikely]]
    CallAdapter(g_adapter.on_root, module, "on_root");
  // Only the main thread's forward makes the steps its own; see StepMachine.
  if (MayFetch()) g_machine_owned = true;
  const std::int64_t size = InputSize(args, count, kwnames);
  if (g_acts_untold) [[unlikely]]
    TellActs();
  const tt_mode mode = ModeOf(train);
  g_last_forward_trains = mode != TT_MODE_EVAL;
  std::uint64_t evaluation = 0;
  if (train) {
    g_fetched = false;
    if (g_evaluating) [[unlikely]]
      EndEvaluation();
    if (g_adapter.on_second != nullptr) [[unlikely]] {
      const std::uint64_t now = tt_now();
      if (now >= g_second_due) SampleSecond(now);
    }
  } else if (mode == TT_MODE_EVAL) {
    evaluation = tt_now();
    if (!g_eval_seen) {
      g_eval_seen = true;
      CallAdapter(g_adapter.on_eval, module, "on_eval");
    }
  }
  const bool another = RootForwardBegins(args, count);
  if (another) [[unlikely]]
    g_newest_is_model = HasParameters(module);
  if (gradients) LoopForward(module);
  tt_forward_begin(mode);
  StepBorder(Border::kForward, mode);
  PhaseBorder(TT_PHASE_FORWARD, true);
  const bool inside = thread->root_open;
  thread->root_open = true;
  thread->root_size = size;
  thread->watching = (AnythingDue() ? WatchForward(module, train) : 0) | WatchSpans();
  if ((thread->watching & kWatchInputs) != 0) TellInputs({args, nargsf, kwnames});
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  if ((thread->watching & kWatchResults) != 0 && result != nullptr) {
    TellModule({args, nargsf, kwnames}, result);
  }
  thread->watching = 0;
  if (thread->root_open) {
    PhaseBorder(TT_PHASE_FORWARD, false);
    tt_forward_end(train && !newest && TellsNoBatch(module, result) ? 0 : size);
    if (another && !g_newest_is_model) [[unlikely]]
      g_newest_is_model = HasOwnWeights({args, nargsf, kwnames}, result);
    if (gradients && result != nullptr) LoopForwardEnded(result);
    if (mode == TT_MODE_EVAL) EvaluationForward(evaluation, tt_now());
  }
  thread->root_open = inside;
  return result;
}

/// A backward begins in the forward of a root: that is no pass, it trains. What it calls from here
/// on are roots.
[[gnu::cold]] void RootTrains(ThreadState* thread) {
  PhaseBorder(TT_PHASE_FORWARD, false);
  tt_forward_end(thread->root_size);
  thread->root_open = false;
  thread->module_base = thread->module_depth;
}

/// A module inside a root whose calls the plan asks for.
PyObject* WatchedForward(ThreadState* thread, PyObject* self, PyObject* const* args,
                         std::size_t nargsf, PyObject* kwnames) {
  const ModuleDepth depth(thread);
  // What runs in a fetch or in a backward (checkpointing) is no part of the forward.
  const bool outside = thread->next_depth > 0 || thread->backward_depth > 0;
  if ((thread->watching & kWatchInputs) != 0 && !outside) TellInputs({args, nargsf, kwnames});
  const bool spanned = (thread->watching & kWatchSpans) != 0 && !outside && ArgCount(nargsf) > 0;
  PyObject* result = nullptr;
  if (ArgCount(nargsf) > 0 && IsLossModule(args[0])) {
    const LossDepth loss(thread);
    const ModuleSpan span(spanned ? args[0] : nullptr);
    result = CallOriginal(self, args, nargsf, kwnames);
  } else {
    const ModuleSpan span(spanned ? args[0] : nullptr);
    result = CallOriginal(self, args, nargsf, kwnames);
  }
  if (result != nullptr && (thread->watching & kWatchResults) != 0 && !outside) {
    TellModule({args, nargsf, kwnames}, result);
  }
  return result;
}

[[gnu::hot]] PyObject* Forward(PyObject* self, PyObject* const* args, std::size_t nargsf,
                               PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  // In a fetch (a transform, a collate function) it is part of the wait for data.
  if (thread.module_depth > thread.module_base || thread.next_depth > 0 ||
      g_recording == Recording::kOff || (g_backwards > 0 && HelpsBackward())) [[likely]] {
    if (thread.watching != 0) [[unlikely]]
      return WatchedForward(&thread, self, args, nargsf, kwnames);
    ModuleDepth depth(&thread);
    return CallOriginal(self, args, nargsf, kwnames);
  }
  return RootForward(&thread, self, args, nargsf, kwnames);
}

[[gnu::hot]] PyObject* Backward(PyObject* self, PyObject* const* args, std::size_t nargsf,
                                PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (thread.backward_depth > 0 || HelpsBackward() || !MaySteps()) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  thread.trains = true;
  if (thread.root_open) [[unlikely]]
    RootTrains(&thread);
  // Forward passes that run again inside (checkpointing) are part of the backward.
  ModuleDepth modules(&thread);
  Depth depth(&thread.backward_depth);
  Depth running(&g_backwards);
  const OwnTime own;
  double loss = 0;
  const bool has_loss = ArgCount(nargsf) > 0 && TakeLoss(args[0], &loss);
  g_machine_owned = true;
  BackwardBegins();
  if (ArgCount(nargsf) > 0) LoopBackward({args, nargsf, kwnames}, IsNewestScaled(args[0]));
  if (has_loss && !std::isfinite(loss)) [[unlikely]]
    LoopNotFinite(args[0]);
  own.Account();
  tt_backward_begin();
  PhaseBorder(TT_PHASE_BACKWARD, true);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  PhaseBorder(TT_PHASE_BACKWARD, false);
  tt_backward_end(has_loss ? 1 : 0, loss);
  if (result != nullptr) BackwardEnded();
  return result;
}

/// An optimizer that takes the scaler itself (fused ones of torch 1) unscales its gradients inside
/// of its step, if it does: what they stand for is not known before.
bool IsGivenScaler(PyObject* kwnames) {
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_Size(kwnames); ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, i), "grad_scaler") == 0) {
      return true;
    }
  }
  return false;
}

/// Records what is due of an optimizer. `kwnames`: of the call of its step.
[[gnu::hot]] void Statistics(PyObject* optimizer, PyObject* kwnames) {
  if (!AnythingDue()) return;
  if (IsGivenScaler(kwnames)) {
    Skipped("capture.scaled_gradients");
  } else {
    TellOptimizer(optimizer);
  }
}

/// Calls an optimizer's step and, before it changes the weights, records what is due: when its
/// closure, if it has one, has made the gradients.
[[gnu::hot]] PyObject* CallOptimizer(PyObject* self, PyObject* optimizer,
                                     const CallArguments& call) {
  std::array<PyObject*, 8> replaced{};
  const std::size_t count = ArgCount(call.nargsf);
  const std::size_t named =
      call.kwnames == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(call.kwnames));
  std::size_t position = 0;
  const bool may_have_closure = count + named > 1 && count + named <= replaced.size();
  const Ref closure(may_have_closure && AnythingDue() ? WatchClosure(call, &position) : nullptr);
  if (!closure) {
    Statistics(optimizer, call.kwnames);
    return CallOriginal(self, call.args, call.nargsf, call.kwnames);
  }
  std::copy_n(call.args, count + named, replaced.begin());
  replaced[position] = closure.get();
  // Without the flag that there is room before the first argument.
  return CallOriginal(self, replaced.data(), count, call.kwnames);
}

/// Optimizers of several parameter groups whose largest rate is not that of the first one.
struct LargestRate {
  PyObject* optimizer = nullptr;  ///< As an address alone.
  double value = 0;
};
constexpr std::size_t kMaxLargestRates = 4;
LargestRate g_largest_rates[kMaxLargestRates];

/// Records the largest rate of all groups where it has changed: the probe has that of the first.
void TellLargestRate(PyObject* optimizer, double largest, double first) {
  for (LargestRate& rate : g_largest_rates) {
    if (rate.optimizer == optimizer && rate.value == largest) return;
    if (rate.optimizer != optimizer && rate.optimizer != nullptr) continue;
    if (rate.optimizer == nullptr && largest == first) return;
    rate = {optimizer, largest};
    tt_scalar(tt_name("lr.largest", 10), largest);
    return;
  }
}

/// What is done once a step before an optimizer changes the weights, called by itself or by its
/// scaler. Returns the learning rate of its first group.
[[gnu::hot]] double BeforeOptimizer(ThreadState* thread, PyObject* optimizer) {
  if (g_backwards == 0) thread->trains = true;
  // Also for a step without its scaler (after scaler.unscale_): the scaled loss is used up.
  g_scale_pending = false;
  ForgetScaled();
  if (g_optimizers_epoch != g_epoch) {
    g_optimizers.Clear();
    g_optimizers_epoch = g_epoch;
  }
  if (g_optimizers.Insert(optimizer)) {
    CallAdapter(g_adapter.on_optimizer, optimizer, "on_optimizer");
  }
  OptimizerSteps();
  g_machine_owned = true;
  LoopOptimizer(optimizer);
  const LearningRates rates = LearningRatesOf(optimizer);
  if (!std::isnan(rates.largest)) [[unlikely]]
    TellLargestRate(optimizer, rates.largest, rates.first);
  return rates.first;
}

[[gnu::hot]] PyObject* Optimizer(PyObject* self, PyObject* const* args, std::size_t nargsf,
                                 PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (ArgCount(nargsf) == 0 || !MaySteps()) return CallOriginal(self, args, nargsf, kwnames);
  PyObject* optimizer = args[0];
  if (thread.in_scaler && !thread.scaler_stepped) {
    thread.scaler_stepped = true;
    // The gradients are unscaled by now, or the optimizer says by how much they are not.
    Statistics(optimizer, kwnames);
  }
  // An optimizer that calls another, or its base class, is one step.
  if (thread.optimizer_depth > 0) return CallOriginal(self, args, nargsf, kwnames);
  Depth depth(&thread.optimizer_depth);
  const double lr = BeforeOptimizer(&thread, optimizer);
  const std::uint64_t id = OptimizerId(optimizer);
  tt_optimizer_begin(id);
  PhaseBorder(TT_PHASE_OPTIMIZER, true);
  PyObject* result = CallOptimizer(self, optimizer, {args, nargsf, kwnames});
  PhaseBorder(TT_PHASE_OPTIMIZER, false);
  tt_optimizer_end(id, 0, lr);
  if (result != nullptr) OptimizerStepped(optimizer);
  return result;
}

PyObject* Scaler(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (ArgCount(nargsf) < 2 || thread.optimizer_depth > 0 || !MaySteps() ||
      !IsTrueAttr(args[0], g_enabled)) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  Depth depth(&thread.optimizer_depth);
  PyObject* optimizer = args[1];
  const double lr = BeforeOptimizer(&thread, optimizer);
  const std::uint64_t id = OptimizerId(optimizer);
  thread.in_scaler = true;
  thread.scaler_stepped = false;
  tt_optimizer_begin(id);
  PhaseBorder(TT_PHASE_OPTIMIZER, true);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  const bool skipped = result != nullptr && !thread.scaler_stepped;
  // The gradients, unscaled by now, say why.
  if (skipped) Statistics(optimizer, nullptr);
  PhaseBorder(TT_PHASE_OPTIMIZER, false);
  tt_optimizer_end(id, skipped ? 1 : 0, lr);
  thread.in_scaler = false;
  if (skipped) {
    g_rescale.skipped = true;
  } else if (result != nullptr) {
    OptimizerStepped(optimizer);
  }
  return result;
}

/// zero_grad of an optimizer or of a module.
[[gnu::hot]] PyObject* Clear(PyObject* self, PyObject* const* args, std::size_t nargsf,
                             PyObject* kwnames) {
  const ThreadState& thread = ThisThread();
  if (ArgCount(nargsf) > 0 && thread.optimizer_depth == 0 && thread.backward_depth == 0 &&
      thread.next_depth == 0 && MayFetch() && MaySteps()) {
    GradientsAreCleared(args[0]);
  }
  return CallOriginal(self, args, nargsf, kwnames);
}

/// GradScaler.update: the scale falls after a step that was skipped, and grows after so many that
/// were not. To read it may mean to wait for a device, so it is only looked at then.
PyObject* Rescale(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  const std::size_t count = ArgCount(nargsf);
  if (result == nullptr || count == 0 || g_adapter.on_scale == nullptr || !MaySteps() ||
      !IsTrueAttr(args[0], g_enabled)) {
    return result;
  }
  const bool given = count > 1 || (kwnames != nullptr && PyTuple_Size(kwnames) > 0);
  if (!g_rescale.skipped && !given && --g_rescale.left > 0) return result;
  g_rescale.skipped = false;
  g_rescale.left = 1;
  const Ref interval(PyObject_GetAttr(args[0], g_growth_interval));
  const long long steps = interval ? PyLong_AsLongLong(interval.get()) : 0;
  DropError();
  if (steps > 0) g_rescale.left = steps;
  CallAdapter(g_adapter.on_scale, args[0], "on_scale");
  return result;
}

PyObject* Scale(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  if (result == nullptr || ArgCount(nargsf) < 2 || result == args[1]) return result;
  if (g_recording != Recording::kOn) return result;
  g_scale_pending = true;
  ForgetScaled();
  if (!IsTensor(args[1]) || !IsTensor(result)) return result;
  // Another thread may come in here.
  PyObject* unscaled = Detached(args[1]);
  ForgetScaled();
  if (unscaled == nullptr) return result;
  g_unscaled = unscaled;
  g_scaled = PyWeakref_NewRef(result, nullptr);
  if (g_scaled == nullptr) {
    DropError();
    ForgetScaled();
  }
  return result;
}

PyObject* Next(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (thread.next_depth > 0 || !MaySteps()) return CallOriginal(self, args, nargsf, kwnames);
  Depth depth(&thread.next_depth);
  if (!MayFetch()) return CallOriginal(self, args, nargsf, kwnames);
  g_fetch_seen = true;
  g_newest_fetch = tt_now();
  bool ready = false;
  if (g_newest_fetch >= g_queue_due && ArgCount(nargsf) > 0) [[unlikely]]
    ready = SampleQueue(args[0], g_newest_fetch);
  FetchBegins();
  tt_fetch_begin();
  StepBorder(Border::kFetch);
  PhaseBorder(TT_PHASE_DATA_WAIT, true);
  const std::uint64_t begin = ready ? tt_now() : 0;
  PyObject* batch = CallOriginal(self, args, nargsf, kwnames);
  if (ready && batch != nullptr) [[unlikely]]
    TookHandOver(tt_now() - begin);
  PhaseBorder(TT_PHASE_DATA_WAIT, false);
  const std::int64_t size = batch != nullptr ? BatchSize(batch) : 0;
  g_fetched = g_fetched || batch != nullptr;
  const bool ended = batch == nullptr && PyErr_ExceptionMatches(PyExc_StopIteration) != 0;
  tt_fetch_end(ended ? -1 : size);
  if (ArgCount(nargsf) > 0) BatchComes(args[0], batch, size, ended);
  return batch;
}

PyObject* Iter(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (thread.next_depth > 0 || ArgCount(nargsf) == 0 || !MayFetch() || !MaySteps()) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  Depth depth(&thread.next_depth);
  CallAdapter(g_adapter.on_loader, args[0], "on_loader");
  tt_phase_begin(TT_PHASE_DATA_WAIT);
  PyObject* iterator = CallOriginal(self, args, nargsf, kwnames);
  tt_phase_end(TT_PHASE_DATA_WAIT);
  if (iterator != nullptr) LoaderIterates(args[0], iterator);
  return iterator;
}

PyObject* Fetch(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  if (ArgCount(nargsf) == 0 || !Ready(TT_PROCESS_WORKER)) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  std::uint64_t end = 0;
  PyObject* result = nullptr;
  {
    WatchedItems items(args[0], reinterpret_cast<HookObject*>(self)->name);
    FetchCost cost;
    const std::uint64_t begin = tt_now();
    result = CallOriginal(self, args, nargsf, kwnames);
    end = tt_now();
    tt_span(g_names.fetch, begin, end, TT_SPAN_DATA);
    if (result != nullptr) {
      cost.End(begin, end, items, result);
      items.Tell(begin, end);
    }
  }
  // The fetcher has its data set again.
  if (result != nullptr && end >= g_fetched_due) [[unlikely]]
    SampleFetcher(args[0], end);
  return result;
}

/// Bytes of a tensor, or of those in a list.
std::uint64_t BytesOf(PyObject* value, bool inside = false) {
  if (!inside && PyList_Check(value) != 0) {
    std::uint64_t sum = 0;
    // Another thread may shorten it meanwhile.
    for (Py_ssize_t i = 0; i < std::min<Py_ssize_t>(PyList_Size(value), 1024); ++i) {
      PyObject* each = PyList_GetItem(value, i);
      if (each == nullptr) {
        PyErr_Clear();
        break;
      }
      Py_INCREF(each);
      const Ref kept(each);
      sum += BytesOf(each, true);
    }
    return sum;
  }
  // A subclass may answer by the user's code.
  if (Py_TYPE(value) != g_adapter.tensor_type) return 0;
  Ref elements(PyObject_CallMethod(value, "numel", nullptr));
  Ref size(elements ? PyObject_CallMethod(value, "element_size", nullptr) : nullptr);
  const unsigned long long bytes =
      size ? PyLong_AsUnsignedLongLong(elements.get()) * PyLong_AsUnsignedLongLong(size.get()) : 0;
  if (PyErr_Occurred() == nullptr) return bytes;
  DropError();
  return 0;
}

/// A collective ended: its span, and what it moved, by the larger of what it took and gave.
void TellCollective(HookObject* hook, const CallArguments& call, std::uint64_t begin,
                    std::uint64_t end) {
  RecordSpan(hook->name, begin, end, TT_SPAN_RUNTIME);
  ErrorGuard guard;
  const std::size_t count =
      ArgCount(call.nargsf) +
      (call.kwnames == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(call.kwnames)));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes = std::max(bytes, BytesOf(call.args[i]));
  if (hook->epoch != g_epoch) {
    // What was counted so far is of the process that this one was forked from.
    hook->calls = hook->bytes = hook->ticks = 0;
    hook->epoch = g_epoch;
  }
  ++hook->calls;
  hook->bytes += bytes;
  hook->ticks += end - begin;
}

PyObject* CommWait(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  if (thread.wait_depth > 0 || !g_machine_owned || !MaySteps()) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  Depth depth(&thread.wait_depth);
  auto* hook = reinterpret_cast<HookObject*>(self);
  const std::uint64_t begin = tt_now();
  tt_phase_begin(TT_PHASE_COMM_WAIT);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  tt_phase_end(TT_PHASE_COMM_WAIT);
  if (hook->name != nullptr) TellCollective(hook, {args, nargsf, kwnames}, begin, tt_now());
  return result;
}

/// Whether a mode of the user's would see what a tensor is asked.
bool InFunctionMode() {
  if (g_adapter.function_mode == nullptr) return false;
  Ref on(PyObject_CallObject(g_adapter.function_mode, nullptr));
  if (!on) DropError();
  return on.get() == Py_True;
}

/// A tensor was made of another: told where it was copied from the host to a device, or back.
[[gnu::noinline]] void TellMove(const HookObject& hook, PyObject* from, PyObject* to,
                                std::uint64_t begin, std::uint64_t end) {
  ErrorGuard guard;
  const OwnTime own;
  if (InFunctionMode()) return;
  const bool to_host = IsTrueAttr(to, g_is_cpu);
  if (to_host != IsTrueAttr(from, g_is_cpu)) {
    const ThreadState& thread = ThisThread();
    PyObject* const* const last = thread.timed + thread.timed_count;
    // What is timed as a whole (a model on its way to its device, a checkpoint) is told as that.
    // So is a library's way of moving batches, by the same name: what it copies is counted here.
    const bool inside = thread.timed_count > 0;
    if (!inside || std::find(thread.timed, last, hook.name) != last) {
      CopyTotals& totals = g_copies[to_host ? 1 : 0];
      ++totals.calls;
      totals.bytes += BytesOf(to);
      totals.ticks += end - begin;
    }
    if (!inside && end - begin >= Ticks(hook.least_ns)) {
      RecordSpan(to_host ? g_device_to_host : hook.name, begin, end, TT_SPAN_RUNTIME);
    }
  }
  own.Account();
}

PyObject* Move(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  if (g_recording != Recording::kOn || ArgCount(nargsf) == 0) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  ThreadState& thread = ThisThread();
  if (thread.move_depth > 0) return CallOriginal(self, args, nargsf, kwnames);
  const Depth depth(&thread.move_depth);
  Py_INCREF(self);  // The call may take the hook away.
  const Ref kept(self);
  const std::uint64_t begin = tt_now();
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  // It is there already, as it is asked for: nearly every call. A subclass may answer by the user's
  // code, so it is not asked.
  if (result == nullptr || result == args[0] || Py_TYPE(result) != g_adapter.tensor_type ||
      Py_TYPE(args[0]) != g_adapter.tensor_type) [[likely]] {
    return result;
  }
  TellMove(*reinterpret_cast<HookObject*>(self), args[0], result, begin, tt_now());
  return result;
}

/// Tells the adapter of a call, in Python's form of its arguments. `ns`: how long it took, or null.
void TellCall(const HookObject& hook, const CallArguments& call, PyObject* ns) {
  ErrorGuard guard;
  const OutsideCompiler outside;
  const OwnTime own;
  const std::size_t count = ArgCount(call.nargsf);
  const Py_ssize_t named = call.kwnames == nullptr ? 0 : PyTuple_Size(call.kwnames);
  Ref args(PyTuple_New(static_cast<Py_ssize_t>(count)));
  Ref kwargs(PyDict_New());
  bool made = static_cast<bool>(args) && static_cast<bool>(kwargs);
  for (std::size_t i = 0; made && i < count; ++i) {
    Py_INCREF(call.args[i]);
    PyTuple_SetItem(args.get(), static_cast<Py_ssize_t>(i), call.args[i]);
  }
  for (Py_ssize_t i = 0; made && i < named; ++i) {
    made = PyDict_SetItem(kwargs.get(), PyTuple_GetItem(call.kwnames, i),
                          call.args[count + static_cast<std::size_t>(i)]) == 0;
  }
  Ref result(made ? PyObject_CallFunctionObjArgs(hook.tell, args.get(), kwargs.get(), ns, nullptr)
                  : nullptr);
  // What it may fail of is only told: the recording goes on without it.
  if (!result) DropError();
  own.Account();
}

void TellTimed(const HookObject& hook, const CallArguments& call, std::uint64_t ticks) {
  ErrorGuard guard;
  const double per_ms = static_cast<double>(Ticks(1'000'000));
  const Ref ns(
      PyLong_FromLongLong(static_cast<long long>(static_cast<double>(ticks) * 1e6 / per_ms)));
  if (ns) {
    TellCall(hook, call, ns.get());
  } else {
    DropError();
  }
}

PyObject* Told(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  Py_INCREF(self);  // The call may take the hook away.
  const Ref kept(self);
  const auto* hook = reinterpret_cast<HookObject*>(self);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  if (result != nullptr && hook->tell != nullptr && g_recording != Recording::kOff) {
    TellCall(*hook, {args, nargsf, kwnames}, nullptr);
  }
  return result;
}

PyObject* Timed(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  const auto* hook = reinterpret_cast<HookObject*>(self);
  constexpr int kRoom = sizeof thread.timed / sizeof thread.timed[0];
  PyObject** const last = thread.timed + thread.timed_count;
  // What calls another of its name is one: the outermost.
  if (g_recording == Recording::kOff || thread.timed_count == kRoom ||
      std::find(thread.timed, last, hook->name) != last) {
    return CallOriginal(self, args, nargsf, kwnames);
  }
  const int depth = thread.timed_count++;
  *last = hook->name;
  Py_INCREF(self);  // The call may take the hook away.
  const Ref kept(self);
  const std::uint64_t begin = tt_now();
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  const std::uint64_t end = tt_now();
  if (thread.timed_count > depth) thread.timed_count = depth;
  if (hook->least_ns != 0 && end - begin < Ticks(hook->least_ns)) return result;
  // An empty name: only the adapter is told.
  if (PyUnicode_GetLength(hook->name) > 0) {
    RecordSpan(hook->name, begin, end, TT_SPAN_RUNTIME);
  }
  if (hook->tell != nullptr && result != nullptr) {
    TellTimed(*hook, {args, nargsf, kwnames}, end - begin);
  }
  return result;
}

PyObject* Loss(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  const ThreadState& thread = ThisThread();
  if (result != nullptr && thread.loss_depth == 0 && thread.backward_depth == 0 &&
      g_recording == Recording::kOn && !g_worker && g_machine_owned && WantsLossFunctions() &&
      AnythingDue()) {
    TellLossFunction(reinterpret_cast<HookObject*>(self)->original, {args, nargsf, kwnames},
                     result);
  }
  // Inside a module it is that module's business; with a gradient it is read at backward.
  if (result == nullptr || g_recording != Recording::kOn || g_worker || !g_machine_owned ||
      g_last_forward_trains || thread.module_depth > thread.module_base || thread.next_depth > 0 ||
      GradEnabled()) {
    return result;
  }
  if (Py_TYPE(result) == g_adapter.tensor_type) TakeEvalLoss(result);
  if (ArgCount(nargsf) >= 2) {
    LoopEvalLoss(reinterpret_cast<HookObject*>(self)->original, args[0], args[1]);
  }
  return result;
}

/// Tracing a graph is no pass of the training, and asking tensors anything would be traced too:
/// every module called inside counts as part of another.
PyObject* Trace(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  ModuleDepth depth(&thread);
  const Depth copies(&thread.move_depth);
  const int watching = thread.watching;
  thread.watching = 0;
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  thread.watching = watching;
  return result;
}

PyObject* Schedule(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ThreadState& thread = ThisThread();
  const Depth depth(&thread.schedule_depth);
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  // What a scheduler calls itself, as it is made or since it is made of others, is no step.
  if (result != nullptr && thread.schedule_depth == 1 && g_recording == Recording::kOn &&
      !g_worker && reinterpret_cast<HookObject*>(self)->name == nullptr) {
    LoopSchedule({args, nargsf, kwnames});
  }
  return result;
}

PyObject* Seen(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  ++reinterpret_cast<HookObject*>(self)->calls;
  return CallOriginal(self, args, nargsf, kwnames);
}

PyObject* Acts(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  if (!g_acts) g_acts = g_acts_untold = true;
  // An environment alone makes no process one that trains.
  if (g_recording == Recording::kOn && g_machine_owned) tt_acts();
  return CallOriginal(self, args, nargsf, kwnames);
}

/// Whether a traceback's first frame runs code of this folder.
bool IsOfFolder(PyObject* traceback, PyObject* folder) {
  const Ref frame(PyObject_GetAttrString(traceback, "tb_frame"));
  const Ref code(frame ? PyObject_GetAttrString(frame.get(), "f_code") : nullptr);
  const Ref file(code ? PyObject_GetAttrString(code.get(), "co_filename") : nullptr);
  const bool of_folder = file && PyUnicode_Check(file.get()) != 0 &&
                         PyUnicode_Tailmatch(file.get(), folder, 0, PY_SSIZE_T_MAX, -1) == 1;
  PyErr_Clear();
  return of_folder;
}

/// Takes the frames that the pending exception has passed last out of its traceback, as far as
/// they are of this folder: all of them where the arguments do not fit the method.
[[gnu::cold]] void HideFrames(PyObject* folder) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  while (traceback != nullptr && IsOfFolder(traceback, folder)) {
    PyObject* next = PyObject_GetAttrString(traceback, "tb_next");
    if (next == nullptr) {
      PyErr_Clear();
      break;
    }
    Py_DECREF(traceback);
    if (next == Py_None) Py_CLEAR(next);
    traceback = next;
  }
  PyErr_Restore(type, value, traceback);
}

PyObject* StandIn(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const auto* hook = reinterpret_cast<HookObject*>(self);
  if (hook->tell == nullptr) return CallOriginal(self, args, nargsf, kwnames);
  Py_INCREF(self);  // The call may take the hook away.
  const Ref kept(self);
  PyObject* result = CallVector(hook->tell, args, nargsf, kwnames);
  if (result == nullptr && hook->name != nullptr) HideFrames(hook->name);
  return result;
}

PyObject* NewGroup(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* result = CallOriginal(self, args, nargsf, kwnames);
  if (result != nullptr && g_recording == Recording::kOn && g_adapter.on_group != nullptr) {
    Ref done(PyObject_CallObject(g_adapter.on_group, nullptr));
    if (!done) DisableByException("on_group");
  }
  return result;
}

}  // namespace

CopyTotals g_copies[2];

void ForgetCopies() { g_copies[0] = g_copies[1] = {}; }

Vectorcall HookFunction(HookKind kind) {
  switch (kind) {
    case HookKind::kForward:
      return Forward;
    case HookKind::kBackward:
      return Backward;
    case HookKind::kOptimizer:
      return Optimizer;
    case HookKind::kScaler:
      return Scaler;
    case HookKind::kScale:
      return Scale;
    case HookKind::kNext:
      return Next;
    case HookKind::kIter:
      return Iter;
    case HookKind::kFetch:
      return Fetch;
    case HookKind::kCommWait:
      return CommWait;
    case HookKind::kLoss:
      return Loss;
    case HookKind::kTrace:
      return Trace;
    case HookKind::kTimed:
      return Timed;
    case HookKind::kMove:
      return Move;
    case HookKind::kClear:
      return Clear;
    case HookKind::kRescale:
      return Rescale;
    case HookKind::kSchedule:
      return Schedule;
    case HookKind::kSeen:
      return Seen;
    case HookKind::kCaught:
      return Caught;
    case HookKind::kMakesCaught:
      return MakesCaught;
    case HookKind::kActs:
      return Acts;
    case HookKind::kTold:
      return Told;
    case HookKind::kStandIn:
      return StandIn;
    case HookKind::kNewGroup:
    case HookKind::kCount:
      break;
  }
  return NewGroup;
}

bool InitFrameworkHooks() {
  g_training = PyUnicode_InternFromString("training");
  g_enabled = PyUnicode_InternFromString("_enabled");
  g_is_cpu = PyUnicode_InternFromString("is_cpu");
  g_growth_interval = PyUnicode_InternFromString("_growth_interval");
  g_device_to_host = PyUnicode_InternFromString("device_to_host");
  return g_training != nullptr && g_enabled != nullptr && g_is_cpu != nullptr &&
         g_growth_interval != nullptr && g_device_to_host != nullptr && InitValues();
}

}  // namespace telltale::native
